// Downloads of a run, colours, and the start.

function downloads(run, index, audit, records) {
  const name = run.name.replaceAll(/[^\w.-]+/g, "-");
  const rounds = () => {
    const series = seriesOf(index);
    const names = Object.keys(series);
    download(`${name}-rounds.csv`, [names, ...Array.from(series.round, (_, k) => names.map((key) => series[key][k]))]);
  };
  const clients = () => download(`${name}-clients.csv`, [
    ["rank", "client", "byzantine", "suspicion", "error", "sampled", "received", "dropped", "streak", "rejected", "norm_outliers", "cosine_outliers", "norm", "cosine", "distance", "last_seen", "reason"],
    ...records.map((each) => [each.rank, each.name, each.isByzantine === null ? "" : Number(each.isByzantine), each.suspicion, each.error, each.sampled, each.received,
      each.dropped, each.streak, each.rejected, each.normOutliers, each.cosineOutliers, each.norm, each.cosine, each.distance, each.lastSeen, each.reason])]);
  const verdicts = () => download(`${name}-verdicts.csv`, [["round", "client", "standing", "score", "rank"],
    ...Array.from(audit.clients, (client, k) => [audit.rounds[audit.roundOf[k]], audit.names[client], MARK_NAMES[audit.marks[k]],
      Number(audit.scores[k].toPrecision(4)), audit.ranks[k] === 255 ? null : audit.ranks[k] / 250])]);
  const button = (title, action) => html("button", { type: "button", class: "quiet", click: action }, title);
  return html("div", { class: "tools" }, html("span", { class: "soft" }, "Download CSV:"),
    run.series ? button("rounds", rounds) : null, audit ? [button("clients", clients), button("verdicts", verdicts)] : null);
}

// One line for each run: what differs, its outcome, and its numbers.
function downloadRuns() {
  const settings = [...new Set(data.runs.flatMap((run) => Object.keys(run.settings)))];
  const numbers = ["best", "final", "last_ten", "kept_byzantine", "byzantine_weight", "deviation", ...NUMBERS.slice(6), "seconds"];
  const measures = ["num_byzantine", "drop_precision", "drop_recall", "honest_kept", "top_precision"];
  const plain = (value) => (typeof value === "object" ? JSON.stringify(value) : value);
  download("runs.csv", [["name", "outcome", ...settings, ...numbers, ...measures],
    ...data.runs.map((run) => [run.name, run.outcome, ...settings.map((key) => plain(run.settings[key])), ...numbers.map((key) => run.numbers[key]),
      ...measures.map((key) => run.audit?.detection?.[key])])]);
}

function redrawAll() {
  if (data.grids.length) {
    drawTables();
    drawCurves();
  }
  if (data.runs.length) drawRun(data.runs[runs.current], runs.current);
}

const THEMES = { "": ["◐", "Colours: as the system"], light: ["☀", "Colours: light"], dark: ["☾", "Colours: dark"] };

function setTheme(theme) {
  const root = document.documentElement;
  if (theme) root.dataset.theme = theme;
  else delete root.dataset.theme;
  const [sign, label] = THEMES[theme];
  byId("theme").textContent = sign;
  byId("theme").setAttribute("aria-label", label);
  byId("theme").title = label;
  try { localStorage.setItem("outvote-theme", theme); } catch { /* Files may not store anything: then it lasts as long as the page. */ }
}

function startTheme() {
  let stored = "";
  try { stored = localStorage.getItem("outvote-theme") ?? ""; } catch { /* The same. */ }
  setTheme(stored in THEMES ? stored : "");
  byId("theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    setTheme(names[(names.indexOf(document.documentElement.dataset.theme ?? "") + 1) % names.length]);
    redrawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
}

function startResizing() {
  let width = innerWidth;
  let timer = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(() => { if (data.grids.length) drawCurves(); runs.redraw(); }, 120);
  });
}

function visit(index) {
  showRun(index, false);
  byId("runs").scrollIntoView();
  byId("runs-title").focus({ preventScroll: true });
}

// A link to where one is already changes no address.
function visitAgain(index) {
  if (location.hash === `#run=${index}`) visit(index);
}

addEventListener("hashchange", () => {
  const index = runInAddress();
  if (index !== null) visit(index);
});
addEventListener("pointerdown", (event) => { if (!event.target.closest(".plot, .matrix")) tip.hide(); });
addEventListener("scroll", () => tip.hide(), { passive: true });

startTheme();
startTables();
startCurves();
startRuns();
startResizing();
const shared = pairsTable("Settings that all runs share", data.settings);
if (shared) byId("shared").append(html("h3", {}, "Settings"), shared);
document.documentElement.dataset.ready = "yes";
