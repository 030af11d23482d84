// A page that a server keeps up to date: loaded again when the runs change, and shown as it was.

const SECONDS_BETWEEN = 2;
const WATCHED = "outvote-watched";

function keepView() {
  const grid = data.grids[curves.grid];
  const view = {
    scroll: scrollY, metric: tables.metric, isShaded: tables.isShaded, sorts: tables.sorts, what: curves.what,
    grid: grid?.title, hidden: grid ? [...curves.hidden].map((row) => grid.rows[row]) : [],
    find: byId("find").value, run: data.runs[runs.current]?.name, isChosen: runInAddress() !== null,
  };
  try { sessionStorage.setItem(WATCHED, JSON.stringify(view)); } catch { /* Then the page begins anew. */ }
}

function keptView() {
  try {
    const text = sessionStorage.getItem(WATCHED);
    sessionStorage.removeItem(WATCHED);
    return text === null ? null : JSON.parse(text);
  } catch {
    return null;
  }
}

function choose(id, value) {
  const field = byId(id);
  if (field && [...field.options].some((option) => option.value === String(value))) field.value = value;
}

// Runs and tables may have been added since: what was chosen is found by its name.
function restoreView(view) {
  const grid = data.grids.findIndex((each) => each.title === view.grid);
  if (grid >= 0) {
    const radio = document.querySelector(`input[name=metric][value=${view.metric}]`);
    if (radio) {
      radio.checked = true;
      tables.metric = view.metric;
    }
    byId("shaded").checked = tables.isShaded = view.isShaded;
    tables.sorts = data.grids.map((_, k) => view.sorts[k] ?? { column: null, direction: 1 });
    const hidden = view.hidden.map((name) => data.grids[grid].rows.indexOf(name)).filter((row) => row >= 0);
    Object.assign(curves, { grid, what: view.what, hidden: new Set(hidden) });
    choose("curve-grid", grid);
    choose("curve-what", view.what);
    drawTables();
    drawCurves();
  }
  byId("find").value = view.find;
  listRuns();
  const run = data.runs.findIndex((each) => each.name === view.run);
  if (run >= 0) showRun(run, view.isChosen);
  scrollTo(0, view.scroll);
}

async function askServer() {
  try {
    const answer = await fetch("version", { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    byId("watched").textContent = "The page is loaded again when the runs change.";
    if ((await answer.text()) === document.body.dataset.version) return;
    keepView();
    location.reload();
  } catch {
    byId("watched").textContent = "The server does not answer: what is shown may be old.";
  }
}

const view = keptView();
if (view) restoreView(view);
setInterval(() => { if (!document.hidden) askServer(); }, SECONDS_BETWEEN * 1000);
addEventListener("visibilitychange", () => { if (!document.hidden) askServer(); });
