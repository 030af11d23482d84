// Curves of a table: a panel for each column, a line for each rule, a band over seeds.

const CURVES = {
  accuracy: { title: "Accuracy", format: (value) => percent(value, 0), of: (series) => series.accuracy },
  loss: { title: "Training loss of the honest clients", format: short, of: (series) => series.loss },
  deviation: { title: "Distance of the update to the honest mean", format: short, isLog: true, of: (series) => series.deviation },
  relative: { title: "The same, relative to the honest mean", format: short, isLog: true,
    of: (series) => series.deviation.map((value, k) => value / series.honest_norm[k]) },
  kept: { title: "Byzantine selection rate", format: (value) => percent(value, 0), isSmooth: true,
    of: (series) => Float64Array.from(series.num_byzantine, (num, k) => (num ? series.num_kept_byzantine[k] / num : NaN)) },
  gradient_norm: { title: "Theory: norm of the gradient", format: short, isLog: true, needs: "gradient_norm",
    of: (series) => measured(series, "gradient_norm") },
  gradient_deviation: { title: "Theory: distance of the update to the expected gradient", format: short, isLog: true, needs: "gradient_deviation",
    of: (series) => measured(series, "gradient_deviation") },
  bound: { title: "Theory: bound of that distance, divided by it", format: short, isLog: true, needs: "deviation_bound",
    of: (series) => measured(series, "deviation_bound").map((value, k) => value / measured(series, "gradient_deviation")[k]) },
};
// NaN where a run did not measure it.
const measured = (series, name) => series[name] ?? new Float64Array(series.round.length).fill(NaN);
const isMeasuredBySome = (curve) => !curve.needs || data.runs.some((run) => run.series && curve.needs in run.series);
const curves = { grid: 0, what: "accuracy", hidden: new Set(), only: null };
const unpacked = new Map();

function seriesOf(run) {
  if (!unpacked.has(run)) {
    const packed = data.runs[run].series ?? {};
    unpacked.set(run, Object.fromEntries(Object.entries(packed).map(([name, value]) => [name, unpack(value)])));
  }
  return unpacked.get(run);
}

function startCurves() {
  if (!data.grids.length) return;
  byId("curve-grid").append(...data.grids.map((grid, k) => html("option", { value: k }, grid.title)));
  byId("curve-grid-field").hidden = data.grids.length < 2;
  byId("curve-what").append(...Object.entries(CURVES).filter(([, curve]) => isMeasuredBySome(curve)).map(([name, curve]) => html("option", { value: name }, curve.title)));
  byId("curve-grid").addEventListener("change", (event) => {
    Object.assign(curves, { grid: Number(event.target.value), hidden: new Set() });
    drawCurves();
  });
  byId("curve-what").addEventListener("change", (event) => { curves.what = event.target.value; drawCurves(); });
  byId("curve-values").addEventListener("toggle", drawValues);
  drawCurves();
}

// Rules that wrap the same rule share a hue; the plain one is dashed and thinner.
function styleOf(grid, row) {
  const families = [...new Set(grid.families)];
  const palette = hues();
  const index = families.indexOf(grid.families[row]);
  const alike = grid.families.flatMap((family, k) => (family === grid.families[row] ? [k] : []));
  const rank = alike.indexOf(row);
  const isPlain = alike.length > 1 && grid.rows[row] === grid.families[row];
  const dash = isPlain ? "5 3" : [null, null, "2 2", "8 2 2 2"][Math.min(rank, 3)];
  return { colour: palette[index % palette.length], dash: index >= palette.length && !dash ? "9 3" : dash, width: isPlain ? 1.5 : 2 };
}

const SMOOTH = 10;

function smoothed(values) {
  return Float64Array.from(values, (_, k) => {
    const known = Array.from(values.slice(Math.max(0, k - SMOOTH + 1), k + 1)).filter(isKnown);
    return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : NaN;
  });
}

const MAX_POINTS = 50;

// Of many rounds a point is the mean of several: single rounds of many lines would be a blur.
function roundsPerPoint(grid) {
  const longest = Math.max(1, ...grid.cells.flat().flatMap((cell) => cell.runs).map((run) => seriesOf(run).round?.length ?? 0));
  return Math.ceil(longest / MAX_POINTS);
}

function means(rounds, values, size) {
  if (size === 1) return Array.from(rounds, (round, k) => [round, values[k]]);
  const points = [];
  for (let first = 0; first < rounds.length; first += size) {
    const known = Array.from(values.slice(first, first + size)).filter(Number.isFinite);
    const last = Math.min(first + size, rounds.length) - 1;
    points.push([rounds[last], known.reduce((sum, value) => sum + value, 0) / known.length]);
  }
  return points;
}

// Mean, and mean ± deviation, over the runs of a cell.
function pointsOf(runs, curve, size) {
  const found = new Map();
  for (const run of runs) {
    const series = seriesOf(run);
    if (!series.round) continue;
    const values = curve.isSmooth ? smoothed(curve.of(series)) : curve.of(series);
    for (const [round, value] of means(series.round, values, size)) {
      if (Number.isFinite(value)) found.set(round, [...(found.get(round) ?? []), value]);
    }
  }
  return [...found].sort((a, b) => a[0] - b[0]).map(([round, values]) => {
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    if (values.length < 2) return [round, mean, null, null];
    const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1));
    return [round, mean, mean - deviation, mean + deviation];
  });
}

function linesOf(grid, column) {
  const curve = CURVES[curves.what];
  const size = roundsPerPoint(grid);
  return grid.rows.map((name, row) => ({ ...styleOf(grid, row), label: name, row, points: pointsOf(grid.cells[row][column].runs, curve, size) }))
    .filter((line) => line.points.length);
}

function drawCurves() {
  const grid = data.grids[curves.grid];
  const curve = CURVES[curves.what];
  const all = grid.columns.map((_, column) => linesOf(grid, column));
  const shown = all.map((lines) => lines.filter((line) => !curves.hidden.has(line.row)));
  const range = rangeOf(shown.flat(), curve.isLog);
  drawLegend(grid, new Set(all.flat().map((line) => line.row)));
  const boxes = grid.columns.map((title) => html("figure", { class: "panel" }, html("figcaption", {}, title), html("div", { class: "plot" })));
  byId("panels").replaceChildren(...boxes);
  boxes.forEach((box, column) => {
    const plot = box.querySelector(".plot");
    const isRun = grid.cells.some((cells) => cells[column].runs.length);
    if (!all[column].length) plot.append(html("p", { class: "note" }, isRun ? "not measured" : "not run"));
    else drawChart(plot, { lines: shown[column], label: `${curve.title} by round, ${grid.columns[column]}; the values are in the table below`,
      format: curve.format, isLog: curve.isLog, range });
  });
  const size = roundsPerPoint(grid);
  byId("curve-note").textContent = size > 1 ? `Each point is the mean of ${size} rounds, drawn at the last of them.` : "";
  drawValues();
}

// The lines of one rule stand out while its key is pointed at.
function light(row) {
  for (const path of document.querySelectorAll("#panels .line, #panels .band")) {
    path.classList.toggle("faint", row !== null && path.dataset.row !== String(row));
  }
}

function drawLegend(grid, known) {
  const toggle = (row) => {
    if (!curves.hidden.delete(row)) curves.hidden.add(row);
    drawCurves();
    byId("legend").querySelector(`[data-row="${row}"]`)?.focus();
  };
  const items = grid.rows.flatMap((name, row) => (known.has(row) ? [html("button", { type: "button", class: "key", "data-row": row,
    "aria-pressed": String(!curves.hidden.has(row)), click: () => toggle(row), pointerenter: () => light(row), pointerleave: () => light(null) }, swatch(styleOf(grid, row)), name)] : []));
  const toggleAll = () => { curves.hidden = new Set(curves.hidden.size ? [] : known); drawCurves(); };
  byId("legend").replaceChildren(...items, html("button", { type: "button", class: "key all", click: toggleAll }, curves.hidden.size ? "show all" : "hide all"));
}

const NUM_VALUES = 12;

// The text alternative: a few rounds of every line.
function drawValues() {
  const details = byId("curve-values");
  if (!details.open) return;
  const grid = data.grids[curves.grid];
  const { format, isSmooth } = CURVES[curves.what];
  const show = curves.what === "accuracy" || isSmooth ? (value) => percent(value) : format;
  const rows = grid.columns.flatMap((title, column) => linesOf(grid, column).map((line) => ({ title, line })));
  const rounds = [...new Set(rows.flatMap(({ line }) => line.points.map(([round]) => round)))].sort((a, b) => a - b);
  const every = Math.max(1, Math.ceil(rounds.length / NUM_VALUES));
  const chosen = rounds.filter((_, k) => (rounds.length - 1 - k) % every === 0);
  const head = html("tr", {}, ["column", "rule", ...chosen.map((round) => `round ${round}`)].map((text) => html("th", { scope: "col" }, text)));
  const body = rows.map(({ title, line }) => {
    const values = new Map(line.points.map(([round, mean]) => [round, mean]));
    return html("tr", {}, html("th", { scope: "row" }, title), html("th", { scope: "row" }, line.label), chosen.map((round) => html("td", {}, show(values.get(round)))));
  });
  details.querySelector("div").replaceChildren(html("table", { class: "numbers plain" }, html("thead", {}, head), html("tbody", {}, body)));
}
