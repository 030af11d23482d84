// Line charts as SVG, drawn to the width of their box.

// A scale of powers has no zero: it gets a line of its own at the bottom.
const ZERO_HEIGHT = 18;
const MARGIN = { top: 10, right: 10, bottom: 28, left: 44 };

function niceTicks(low, high, wanted) {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) ticks.push(k * step);
  return ticks;
}

// Powers of ten, and twice and five times them where there is space.
function logTicks(low, high) {
  const of = (factors) => {
    const ticks = [];
    for (let power = Math.floor(low); power <= Math.floor(high); power += 1) ticks.push(...factors.map((factor) => power + Math.log10(factor)));
    return ticks.filter((tick) => tick >= low && tick <= high);
  };
  const fine = of([1, 2, 5]);
  if (fine.length < 2) return niceTicks(10 ** low, 10 ** high, 4).filter((tick) => tick > 0).map(Math.log10);
  return fine.length > 6 ? of([1]) : fine;
}

// Lines have { label, colour, dash, width, points: [[x, y, low, high]] }.
function rangeOf(lines, isLog) {
  const values = lines.flatMap((line) => line.points.flatMap(([, y, low, high]) => [y, low ?? y, high ?? y]));
  const usable = values.filter((value) => Number.isFinite(value) && (!isLog || value > 0)).map((v) => (isLog ? Math.log10(v) : v));
  const hasZero = isLog && values.includes(0);
  if (!usable.length) return hasZero ? [NaN, NaN, true] : [0, 1, false];
  const [low, high] = [Math.min(...usable), Math.max(...usable)];
  const pad = (high - low || Math.abs(high) || 1) * 0.06;
  return [isLog || low < 0 ? low - pad : Math.max(0, low - pad), high + pad, hasZero];
}

function pathOf(points, x, y) {
  let text = "";
  let isDown = false;
  for (const [at, value] of points) {
    const height = y(value);
    if (!Number.isFinite(height)) { isDown = false; continue; }
    text += `${isDown ? "L" : "M"}${x(at).toFixed(1)} ${height.toFixed(1)}`;
    isDown = true;
  }
  return text;
}

function bandOf(points, x, y) {
  const known = points.filter(([, , low, high]) => Number.isFinite(y(low)) && Number.isFinite(y(high)));
  if (known.length < 2) return "";
  const upper = known.map(([at, , , high]) => `${x(at).toFixed(1)} ${y(high).toFixed(1)}`);
  const lower = known.map(([at, , low]) => `${x(at).toFixed(1)} ${y(low).toFixed(1)}`).reverse();
  return `M${[...upper, ...lower].join("L")}Z`;
}

function drawChart(box, { lines, label, format, isLog = false, range = null, height = 220 }) {
  const width = Math.max(240, Math.floor(box.clientWidth));
  const [low, high, hasZero] = range ?? rangeOf(lines, isLog);
  const all = lines.flatMap((line) => line.points.map(([at]) => at));
  const [first, last] = all.length ? [Math.min(...all), Math.max(...all)] : [0, 1];
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  const x = (at) => MARGIN.left + (last > first ? (at - first) / (last - first) : 0.5) * inner.width;
  const y = (value) => {
    if (hasZero && value === 0) return MARGIN.top + inner.height;
    const scaled = isLog ? (value > 0 ? Math.log10(value) : NaN) : value;
    return MARGIN.top + (1 - (scaled - low) / (high - low || 1)) * (inner.height - (hasZero ? ZERO_HEIGHT : 0));
  };
  const figure = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  figure.append(...axes({ x, y, low, high, first, last, width, height, format, isLog, hasZero }));
  for (const line of lines) {
    const band = bandOf(line.points, x, y);
    if (band) figure.append(svg("path", { d: band, fill: line.colour, class: "band", "data-row": line.row }));
  }
  for (const line of lines) {
    figure.append(svg("path", { d: pathOf(line.points, x, y), stroke: line.colour, "stroke-width": line.width ?? 2,
      "stroke-dasharray": line.dash ?? null, class: "line", "data-row": line.row }));
    if (line.points.length === 1) figure.append(svg("circle", { cx: x(line.points[0][0]), cy: y(line.points[0][1]), r: 3, fill: line.colour }));
  }
  box.replaceChildren(figure);
  if (all.length) crosshair(figure, { lines, x, first, last, height, format, width });
}

function axes({ x, y, low, high, first, last, width, height, format, isLog, hasZero }) {
  const raise = (tick) => (isLog ? 10 ** tick : tick);
  const ticks = (isLog ? logTicks(low, high) : niceTicks(low, high, 5)).map(raise);
  const rows = (hasZero ? [0, ...ticks] : ticks).map((tick) => {
    const at = y(tick);
    return [svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at, class: "rule" }),
      svg("text", { x: MARGIN.left - 7, y: at + 4, "text-anchor": "end" }, format(tick))];
  });
  const columns = niceTicks(first, last, Math.max(2, Math.floor(width / 70))).filter(Number.isInteger).map((tick) =>
    svg("text", { x: Math.min(x(tick), width - 12), y: height - 9, "text-anchor": "middle" }, String(tick)));
  const title = svg("text", { x: MARGIN.left - 7, y: height - 9, "text-anchor": "end" }, "round");
  return [...rows.flat(), title, ...columns];
}

// The values at the round under the pointer, largest first.
function crosshair(figure, { lines, x, first, last, height, format, width }) {
  const rule = svg("line", { y1: MARGIN.top, y2: height - MARGIN.bottom, class: "cross", visibility: "hidden" });
  figure.append(rule);
  const maps = lines.map((line) => new Map(line.points.map((point) => [point[0], point[1]])));
  const rounds = [...new Set(maps.flatMap((map) => [...map.keys()]))].sort((a, b) => a - b);
  const move = (event) => {
    const box = figure.getBoundingClientRect();
    const part = ((event.clientX - box.left) * (width / box.width) - MARGIN.left) / (width - MARGIN.left - MARGIN.right);
    const wanted = first + part * (last - first);
    const at = rounds.reduce((best, each) => (Math.abs(each - wanted) < Math.abs(best - wanted) ? each : best), rounds[0]);
    rule.setAttribute("x1", x(at));
    rule.setAttribute("x2", x(at));
    rule.setAttribute("visibility", "visible");
    const found = lines.map((line, k) => ({ line, value: maps[k].get(at) })).filter(({ value }) => isKnown(value));
    found.sort((a, b) => b.value - a.value);
    tip.show(event, [html("b", {}, `round ${at}`), ...found.map(({ line, value }) =>
      html("span", { class: "tip-row" }, swatch(line), html("span", {}, line.label), html("b", {}, format(value))))]);
  };
  figure.addEventListener("pointermove", move);
  figure.addEventListener("pointerdown", move);
  figure.addEventListener("pointerleave", (event) => { rule.setAttribute("visibility", "hidden"); leave(event); });
}

function swatch(line) {
  return svg("svg", { width: 22, height: 8, class: "swatch", "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 21, y1: 4, y2: 4, stroke: line.colour, "stroke-width": (line.width ?? 2) + 0.5,
      "stroke-dasharray": line.dash ?? null }));
}
