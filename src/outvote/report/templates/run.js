// One run: how it went, its audit, its settings, its numbers.

const runs = { current: 0, matrix: null, redraw: () => {} };

const runName = (run) => (isKnown(run.seed) ? `${run.title}, seed ${run.seed}` : run.title);

function startRuns() {
  byId("picker").hidden = data.runs.length < 2;
  byId("find").addEventListener("input", listRuns);
  byId("pick").addEventListener("change", (event) => showRun(Number(event.target.value)));
  byId("before").addEventListener("click", () => step(-1));
  byId("after").addEventListener("click", () => step(1));
  byId("download-runs").addEventListener("click", downloadRuns);
  listRuns();
  if (data.runs.length) showRun(runInAddress() ?? firstRun(), false);
}

function runInAddress() {
  const found = /^#run=(\d+)$/.exec(location.hash);
  return found && Number(found[1]) < data.runs.length ? Number(found[1]) : null;
}

// The run to begin with: a wrapped rule under attack, if there is one.
function firstRun() {
  const index = data.runs.findIndex((run) => run.audit && run.rule.includes("(") && run.attack !== "none");
  return Math.max(0, index);
}

function listRuns() {
  const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  const settings = (run) => Object.entries(run.settings).map(([key, value]) => `${key}=${value}`).join(" ");
  const found = data.runs.flatMap((run, k) => {
    const text = `${run.name} ${runName(run)} seed${run.seed} ${run.outcome} ${settings(run)}`.toLowerCase();
    return words.every((word) => text.includes(word)) ? [k] : [];
  });
  const extra = (run) => Object.entries(run.settings).filter(([key]) => !["rule", "attack", "seed"].includes(key)).map(([key, value]) => `, ${key} ${value}`).join("");
  byId("pick").replaceChildren(...found.map((k) => html("option", { value: k }, runName(data.runs[k]) + extra(data.runs[k]))));
  byId("found").textContent = `${found.length} of ${data.runs.length} ${data.runs.length === 1 ? "run" : "runs"}`;
  if (found.includes(runs.current)) byId("pick").value = runs.current;
  else if (found.length && words.length) showRun(found[0], false);
}

function step(by) {
  const pick = byId("pick");
  const index = pick.selectedIndex + by;
  if (index >= 0 && index < pick.options.length) showRun(Number(pick.options[index].value));
}

function showRun(index, isPushed = true) {
  const run = data.runs[index];
  if (!run) return;
  runs.current = index;
  if (![...byId("pick").options].some((option) => Number(option.value) === index)) {
    byId("find").value = "";
    listRuns();
  }
  byId("pick").value = index;
  if (isPushed) history.replaceState(null, "", `#run=${index}`);
  drawRun(run, index);
}

function drawRun(run, index) {
  const box = byId("run");
  const tone = { finished: "good", log: "good" }[run.outcome] ?? "warn";
  const title = html("h3", {}, runName(run), " ", html("span", { class: `badge ${tone}` }, run.outcome === "log" ? "production log" : run.outcome));
  const why = run.reason ? html("p", { class: "note" }, run.reason) : null;
  const overview = overviewOf(run);
  box.replaceChildren(title, ...(why ? [why] : []), ...[overview?.nodes, numberTiles(run), curvesOf(run, index), auditOf(run, index), setupOf(run)].flat().filter(Boolean));
  const draw = runs.redraw;
  runs.redraw = () => { overview?.draw(); draw(); };
  runs.redraw();
}

function tiles(pairs) {
  return html("dl", { class: "tiles" }, pairs.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value))));
}

function numberTiles(run) {
  const { best, final, last_ten: lastTen, kept_byzantine: kept, deviation } = run.numbers;
  if (best === undefined) return null;
  return tiles([["best", percent(best, 2)], ["final", percent(final, 2)], ["last ten", percent(lastTen, 2)], ["Byzantine selection rate", isKnown(kept) ? `${percent(kept)} %` : "–"], ["deviation", short(deviation)]]);
}

function curvesOf(run, index) {
  const series = seriesOf(index);
  if (!series.round?.length) { runs.redraw = () => {}; return null; }
  const wanted = [["accuracy", "Accuracy"], ["deviation", "Distance of the update to the honest mean"], ["loss", "Training loss of the honest clients"]];
  const boxes = wanted.map(([what, title]) => ({ what, node: html("figure", { class: "panel" }, html("figcaption", {}, title), html("div", { class: "plot" })) }));
  runs.redraw = () => boxes.forEach(({ what, node }) => {
    const curve = CURVES[what];
    const values = curve.of(series);
    const points = Array.from(series.round).flatMap((round, k) => (Number.isFinite(values[k]) ? [[round, values[k]]] : []));
    const line = { label: curve.title, colour: hues()[0], points };
    const plot = node.querySelector(".plot");
    if (points.length) drawChart(plot, { lines: [line], label: `${curve.title} by round: from ${curve.format(points[0][1])} to ${curve.format(points.at(-1)[1])}`, format: curve.format, isLog: curve.isLog, height: 170 });
    else plot.replaceChildren(html("p", { class: "note" }, "not measured"));
  });
  return html("div", { class: "panels three" }, boxes.map(({ node }) => node));
}

function auditOf(run, index) {
  if (!run.audit) {
    return [html("p", { class: "note" }, "This run comes from an export. Clients are not in an export, so there is no audit; make the report from the run folders to see one."),
      downloads(run, index, null, null)];
  }
  const audit = readAudit(run.audit);
  const records = recordsOf(run.audit, audit.names, audit.byzantine);
  const labels = labelsOf(run);
  const ranking = html("div");
  const state = { column: 0, direction: 1, isAll: false };
  const matrix = new Matrix(audit, records.map((each) => each.index));
  runs.matrix = matrix;
  drawRanking(ranking, records, labels, state);
  const draw = runs.redraw;
  runs.redraw = () => { draw(); matrix.draw(); };
  return [...detectionTiles(run.audit.detection, records), html("h4", {}, "All verdicts"), matrixTools(matrix, records), matrixLegend(audit), matrix.box, matrix.status,
    matrixNote(run.audit, audit, matrix), html("h4", {}, "Clients, the most suspicious first"), ...findings(run.audit), labels ? labelsNote() : null, ranking, downloads(run, index, audit, records)];
}

function detectionTiles(found, records) {
  if (!found) return [html("p", { class: "note" }, "Which clients are Byzantine is not known here: there is only suspicion.")];
  if (!found.num_byzantine) {
    return [tiles([["honest kept", isKnown(found.honest_kept) ? `${percent(found.honest_kept, 0)} %` : "–"]]),
      html("p", { class: "note" }, "There is no attack in this run, so there is nothing to find: all that was dropped was honest.")];
  }
  const numSeen = records.filter((each) => each.received).length;
  const share = (value) => (isKnown(value) ? `${percent(value, 0)} %` : "–");
  return [tiles([["precision of dropping", share(found.drop_precision)], ["recall of dropping", share(found.drop_recall)],
    ["honest kept", share(found.honest_kept)], [`Byzantine in the top ${found.num_byzantine}`, share(found.top_precision)]]),
    html("p", { class: "note" }, `Precision: the share of what was dropped that Byzantine clients had sent. Recall: the share of what they had sent that was dropped. The top ${found.num_byzantine} are the most suspicious, as many as Byzantine clients took part; a ranking by chance would have ${percent(found.num_byzantine / numSeen, 0)} % Byzantine clients there.`)];
}

function labelsNote() {
  return html("p", { class: "note" }, "Labels owned: a bar for each class, the share of the client's samples that it is; the line is the share over all clients. An honest client whose classes few others have sends what looks unlike the others, and may rank high without an attack.");
}

// Who stands out, by what, and what that proves: the sentences that `outvote audit` prints.
function findings(entry) {
  return entry.findings.map((sentence) => html("p", { class: "note" }, sentence));
}

function matrixTools(matrix, records) {
  const orders = { "most suspicious": records.map((each) => each.index), "by number": records.map((each) => each.index).sort((a, b) => a - b),
    "most dropped": [...records].sort((a, b) => (b.dropped || 0) - (a.dropped || 0)).map((each) => each.index) };
  if (matrix.audit.byzantine) orders["Byzantine first"] = [...records].sort((a, b) => b.isByzantine - a.isByzantine || a.index - b.index).map((each) => each.index);
  const choose = (event) => matrix.sort(orders[event.target.value]);
  const more = html("button", { type: "button", class: "quiet", hidden: records.length <= SOME_CLIENTS,
    click: (event) => { matrix.numShown = Math.min(MAX_CLIENTS, records.length); event.target.hidden = true; matrix.draw(); } }, `Show ${Math.min(MAX_CLIENTS, records.length)} clients`);
  return html("div", { class: "tools" }, html("label", { class: "field" }, "Order ", html("select", { change: choose }, Object.keys(orders).map((name) => html("option", {}, name)))), more);
}

function matrixLegend(audit) {
  const seen = new Set(audit.marks);
  const bar = (ramp, size) => svg("svg", { width: 44, height: 12, "aria-hidden": "true" }, [0, 1, 2, 3].map((k) => svg("rect", { x: k * 11, y: (12 - size) / 2, width: 10, height: size, fill: ramp[k] })));
  const box = (name, letter) => html("span", { class: `chip ${name}`, "aria-hidden": "true" }, letter);
  const tone = (mark) => (mark === MARK.unknown ? "unknown" : mark <= MARK.malformed ? "ink" : "fault");
  const rest = [3, 4, 5, 6, 7, 8, 9].filter((mark) => seen.has(mark)).map((mark) => html("span", {}, box(tone(mark), MARK_LETTERS[mark]), MARK_NAMES[mark]));
  return html("div", { class: "keys" }, html("span", {}, bar(ramps().kept, 6), "kept (low box)"), html("span", {}, bar(ramps().dropped, 12), "dropped (tall box)"), html("span", { class: "soft" }, "stronger: a larger score than the others of the round"), rest,
    audit.byzantine ? html("span", {}, html("span", { class: "diamond", "aria-hidden": "true" }, "◆"), "Byzantine") : null);
}

function matrixNote(entry, audit, matrix) {
  const notes = [];
  if (entry.every > 1) notes.push(`One of every ${entry.every} rounds is drawn, to keep this file small; the counts below are of all rounds.`);
  if (matrix.first > 0) notes.push(`The last ${MAX_ROUNDS} rounds are drawn.`);
  return notes.length ? html("p", { class: "note" }, notes.join(" ")) : null;
}

function setupOf(run) {
  const parts = [pairsTable(`Settings of this ${run.outcome === "log" ? "log" : "run"}`, run.settings)];
  if (isKnown(run.environment)) parts.push(pairsTable("Environment", data.environments[run.environment]));
  return html("div", { class: "columns" }, parts);
}

function pairsTable(title, pairs) {
  const rows = Object.entries(pairs).flatMap(([key, value]) => (value && typeof value === "object" && !Array.isArray(value)
    ? Object.entries(value).map(([name, each]) => [`${key}.${name}`, each]) : [[key, value]]));
  if (!rows.length) return null;
  return html("details", { open: rows.length <= 6 }, html("summary", {}, title), html("dl", { class: "pairs" }, rows.map(([key, value]) =>
    html("div", {}, html("dt", {}, key), html("dd", {}, Array.isArray(value) ? value.join(", ") : String(value ?? "–"))))));
}
