// The tables of results: a switch for what is shown, sorting, and shades.

const METRICS = {
  best: { title: "Best", note: "Best accuracy of all rounds in percent, mean ± standard deviation over seeds." },
  final: { title: "Final", note: "Accuracy after the last round in percent, mean ± standard deviation over seeds." },
  last_ten: { title: "Last ten", note: "Mean accuracy of the last ten tests in percent, mean ± standard deviation over seeds." },
  worst: { title: "Worst case", note: "The column where each rule does worst, by the mean over seeds. ≥ or ≤: columns are missing, and the worst may be worse." },
  paper: { title: "Vs paper", note: "Best accuracy minus what the paper printed, in points; in brackets the paper’s number. Worst case: our worst minus the paper’s worst." },
  kept_byzantine: { title: "Selection rate", note: "Byzantine selection rate: share of the sampled Byzantine clients that were kept, in percent. –: no attack, or the rule does not report which clients it kept. Less is better." },
  byzantine_weight: { title: "Byzantine weight", note: "The Byzantine clients’ share of the rule’s weights, in percent; of coordinate-wise rules, of the coordinates. –: no attack, or it was not recorded. Less is better." },
  client_accuracy: { title: "Client accuracy", note: "Accuracy on the label distribution of each honest client, mean over these clients and the last ten tests, in percent." },
  worst_decile: { title: "Worst decile", note: "The same for the worst tenth of the honest clients (at least one), mean of the last ten tests, in percent." },
  least_kept: { title: "Least kept", note: "Share of its rounds in which an honest client was kept, for the tenth of the honest clients that were kept least (at least one), in percent." },
  deviation: { title: "Deviation", note: "Distance of the update to the mean of the honest gradients, on average over the rounds with Byzantine clients (over all, if there is no attack), mean ± standard deviation over seeds. Less is better." },
};
const OF_CLIENTS = ["client_accuracy", "worst_decile", "least_kept"];
// Runs of earlier versions do not record what single clients get.
const isMeasured = (metric) => data.grids.some((grid) => grid.cells.some((row) => row.some((cell) => cell[metric])));
const NUMBERS = ["best", "final", "last_ten", "kept_byzantine", "byzantine_weight", "deviation", ...OF_CLIENTS.filter(isMeasured)];
const isLessBetter = (metric) => ["kept_byzantine", "byzantine_weight", "deviation"].includes(metric);
// Shares have two decimals, lengths three digits.
const shown = (value, metric, digits = 3) => (metric === "deviation" ? value.toPrecision(digits) : fixed(value));
const tables = { metric: "best", isShaded: true, sorts: data.grids.map(() => ({ column: null, direction: 1 })) };

function startTables() {
  if (!data.grids.length) return;
  const hasPaper = data.grids.some((grid) => grid.has_paper);
  const hasWorst = data.grids.some((grid) => grid.has_worst);
  for (const [name, metric] of Object.entries(METRICS)) {
    if ((name === "paper" && !hasPaper) || (name === "worst" && !hasWorst) || (OF_CLIENTS.includes(name) && !NUMBERS.includes(name))) continue;
    const choose = () => { tables.metric = name; drawTables(); };
    byId("metric").append(html("label", {}, html("input", { type: "radio", name: "metric", value: name,
      checked: name === tables.metric, change: choose }), html("span", {}, metric.title)));
  }
  byId("shaded").addEventListener("change", (event) => { tables.isShaded = event.target.checked; drawTables(); });
  byId("download-table").addEventListener("click", downloadTables);
  byId("table-tools").hidden = false;
  for (const table of document.querySelectorAll("table[data-grid]")) table.addEventListener("keydown", roam);
  drawTables();
}

function drawTables() {
  byId("metric-note").textContent = METRICS[tables.metric].note;
  const views = data.grids.map(viewOf);
  const [low, high] = extent(views);
  drawScale(low, high);
  views.forEach((view, k) => drawTable(view, k, low, high));
}

// What a table shows: headings, and for every row its cells { value, text, small, run, isBold }.
function viewOf(grid) {
  if (tables.metric === "worst" && grid.has_worst) return worstView(grid);
  const metric = tables.metric === "worst" ? "best" : tables.metric;
  const hasWorst = grid.has_worst && (metric !== "paper" || grid.worst.best.some((worst) => isKnown(worst?.[4])));
  const rows = grid.rows.map((name, row) => {
    const cells = grid.cells[row].map((cell) => (metric === "paper" ? paperCell(cell) : accuracyCell(cell, metric)));
    return { name, cells: hasWorst ? [...cells, metric === "paper" ? worstPaperCell(grid, row) : worstCell(grid, row, metric)] : cells };
  });
  return { headings: hasWorst ? [...grid.columns, "worst case"] : grid.columns, rows };
}

function accuracyCell(cell, metric) {
  if (!cell[metric]) return { value: null, text: cell.best ? "–" : cell.note ?? "–", isMissing: true, run: cell.runs[0] };
  const [mean, deviation] = cell[metric];
  return { value: mean, text: shown(mean, metric), small: deviation === null ? "" : `± ${shown(deviation, metric, 2)}`, note: cell.best ? cell.note : "",
    isBold: (cell.bold ?? []).includes(metric), run: cell.runs[0] };
}

function paperCell(cell) {
  const isMissing = !isKnown(cell.difference);
  return { value: isMissing ? null : cell.difference, text: isMissing ? cell.note ?? "–" : signed(cell.difference), isMissing,
    small: cell.paper ? `(${fixed(cell.paper[0])})` : "", note: isMissing ? "" : cell.note, run: cell.runs[0] };
}

function worstCell(grid, row, metric) {
  const worst = grid.worst[metric][row];
  if (!worst) return { value: null, text: "–", isMissing: true, isEdge: true };
  const sign = worst[2] ? (isLessBetter(metric) ? "≥ " : "≤ ") : "";
  return { value: worst[0], text: sign + shown(worst[0], metric), isEdge: true, run: grid.cells[row][worst[1]].runs[0],
    small: tables.metric === "worst" ? grid.columns[worst[1]] : "" };
}

function worstPaperCell(grid, row) {
  const [, column, , printed, difference] = grid.worst.best[row] ?? [];
  if (!isKnown(difference)) return { value: null, text: "–", isMissing: true, isEdge: true };
  return { value: difference, text: signed(difference), small: `(${fixed(printed)})`, isEdge: true, run: grid.cells[row][column].runs[0] };
}

function worstView(grid) {
  const rows = grid.rows.map((name, row) => ({ name, cells: NUMBERS.map((metric) =>
    ({ ...worstCell(grid, row, metric), isEdge: false, ramp: isLessBetter(metric) ? "none" : null })) }));
  return { headings: NUMBERS.map((metric) => METRICS[metric].title.toLowerCase()), rows };
}

function extent(views) {
  const values = views.flatMap((view) => view.rows.flatMap((row) => row.cells.filter((cell) => cell.ramp !== "none").map((cell) => cell.value))).filter(isKnown);
  if (tables.metric === "paper") {
    const most = Math.max(1, ...values.map(Math.abs));
    return [-most, most];
  }
  return values.length ? [Math.min(...values), Math.max(...values)] : [0, 0];
}

const rampName = () => (tables.metric === "paper" ? "both" : isLessBetter(tables.metric) ? "bad" : "good");

function drawScale(low, high) {
  const ramp = ramps()[rampName()];
  const steps = Array.from({ length: 24 }, (_, k) => svg("rect", { x: k * 4, width: 4.5, height: 10, fill: cssColour(mixed(ramp, k / 23)) }));
  const show = { paper: signed, deviation: short }[tables.metric] ?? ((value) => fixed(value, 1));
  byId("scale").replaceChildren(show(low), svg("svg", { width: 96, height: 10 }, ...steps), show(high));
  byId("scale").hidden = !tables.isShaded || !(high > low);
}

function drawTable(view, k, low, high) {
  const grid = data.grids[k];
  const sort = tables.sorts[k];
  if (sort.column >= view.headings.length) Object.assign(sort, { column: null, direction: 1 });
  const redraw = () => {
    drawTable(view, k, low, high);
    document.querySelector(`#grid-${k} button[data-column="${sort.column}"]`)?.focus();
  };
  const first = isLessBetter(tables.metric) ? 1 : -1;
  const rows = view.rows.map((row, order) => ({ ...row, order, family: grid.families[order] }));
  rows.sort(byValue((row) => (sort.column === null ? row.order : sort.column < 0 ? row.name : row.cells[sort.column].value), sort.direction));
  const head = html("thead", {}, html("tr", {}, sortHeading("rule", -1, sort, 1, redraw),
    view.headings.map((title, column) => sortHeading(title, column, sort, first, redraw, { class: view.rows[0]?.cells[column].isEdge ? "edge" : null }))));
  const bodies = (sort.column === null ? groupsOf(rows) : [rows]).map((group) => html("tbody", {}, group.map((row) =>
    html("tr", {}, html("th", { scope: "row" }, breakable(row.name)), row.cells.map((cell) => drawCell(cell, low, high))))));
  const table = document.querySelector(`table[data-grid="${k}"]`);
  table.replaceChildren(head, ...bodies);
  table.querySelector("tbody a")?.setAttribute("tabindex", "0");
}

// One stop of the Tab key for all numbers of a table; the arrow keys go from one to the next.
function roam(event) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const cell = event.target.closest("tbody td");
  if (!step || !cell) return;
  event.preventDefault();
  const rows = [...event.currentTarget.querySelectorAll("tbody tr")];
  let [row, column] = [rows.indexOf(cell.parentNode), cell.cellIndex];
  for (;;) {
    [row, column] = [row + step[0], column + step[1]];
    const next = rows[row]?.cells[column];
    if (!next) return;
    const link = next.querySelector("a");
    if (!link) continue;
    event.target.tabIndex = -1;
    link.tabIndex = 0;
    link.focus();
    return;
  }
}

// Rules and their wrapped forms stand together, as long as nothing else is sorted by.
function groupsOf(rows) {
  const groups = [];
  for (const row of rows) {
    if (groups.at(-1)?.[0].family === row.family) groups.at(-1).push(row);
    else groups.push([row]);
  }
  return groups.length < rows.length ? groups : [rows];
}

function drawCell(cell, low, high) {
  const content = isKnown(cell.run) ? html("a", { href: `#run=${cell.run}`, tabindex: -1, click: () => visitAgain(cell.run) }, cell.text) : html("span", {}, cell.text);
  const names = [cell.isMissing && "missing", cell.isBold && "bold", cell.isEdge && "edge"].filter(Boolean).join(" ");
  const node = html("td", { class: names || null }, content, cell.small ? [" ", html("small", {}, cell.small)] : null,
    cell.note && !cell.isMissing ? [" ", html("small", { class: "warn" }, cell.note)] : null);
  if (tables.isShaded && isKnown(cell.value) && cell.ramp !== "none") {
    const colour = mixed(ramps()[rampName()], high > low ? (cell.value - low) / (high - low) : 0.5);
    node.style.backgroundColor = cssColour(colour);
    node.style.color = inkOn(colour);
  }
  return node;
}

function downloadTables() {
  const rows = [["table", "rule", "column", "best", "best_std", "final", "final_std", "last_ten", "last_ten_std",
    "byzantine_selection_rate", "byzantine_selection_rate_std", "byzantine_weight", "byzantine_weight_std", "deviation", "deviation_std", ...NUMBERS.slice(6).flatMap((name) => [name, `${name}_std`]), "paper", "difference", "runs", "note"]];
  for (const grid of data.grids) {
    grid.cells.forEach((cells, row) => cells.forEach((cell, column) => rows.push([grid.title, grid.rows[row], grid.columns[column],
      ...NUMBERS.flatMap((metric) => cell[metric] ?? [null, null]),
      cell.paper?.[0] ?? null, cell.difference ?? null, cell.runs.length, cell.note ?? ""])));
  }
  download("table.csv", rows);
}
