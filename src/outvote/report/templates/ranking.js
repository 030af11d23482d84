// The ranking of an audit: each client, how suspicious, how often dropped, what it owns.

const SOME_RANKED = 20;

function recordsOf(entry, names, byzantine) {
  const packed = entry.records;
  const column = Object.fromEntries(Object.entries(packed).filter(([, value]) => value?.data !== undefined).map(([name, value]) => [name, unpack(value)]));
  const faults = Object.entries(packed.faults).map(([name, value]) => [name, unpack(value)]);
  return Array.from({ length: packed.num }, (_, k) => {
    const index = column.index[k];
    return { rank: k + 1, index, name: names[index], isByzantine: byzantine === null ? null : byzantine[index] === 1, reason: entry.texts[column.reason[k]],
      suspicion: column.suspicion[k], error: column.error[k], sampled: column.num_sampled[k], received: column.num_received[k],
      dropped: column.num_dropped[k], rate: column.drop_rate[k],
      streak: column.longest_streak[k], rejected: column.num_rejected[k], norm: column.norm?.[k], cosine: column.cosine?.[k], distance: column.distance?.[k],
      normOutliers: column.num_norm_outliers[k], cosineOutliers: column.num_cosine_outliers[k], lastSeen: column.last_seen[k] || NaN,
      faults: Object.fromEntries(faults.map(([name, counts]) => [name, counts[k]])) };
  });
}

function rankingColumns(records, labels) {
  const faults = Object.keys(records[0]?.faults ?? {});
  const columns = [
    { title: "#", value: (each) => each.rank, first: 1 },
    { title: "client", value: (each) => each.index, first: 1, isText: true, isName: true, draw: (each) => [each.name, each.isByzantine ? html("span", { class: "badge byzantine" }, "Byzantine") : null] },
    { title: "suspicion", value: (each) => each.suspicion, draw: suspicionBar },
    ...(labels ? [{ title: "labels owned", value: (each) => mainShare(labels, each.index), draw: (each) => histogram(labels, each), isText: true }] : []),
    { title: "sampled", value: (each) => each.sampled },
    { title: "dropped", value: (each) => each.dropped },
    { title: "drop rate", value: (each) => each.rate, draw: (each) => (isKnown(each.rate) ? `${percent(each.rate, 0)} %` : "–") },
    { title: "streak", value: (each) => each.streak },
  ];
  if (records.some((each) => each.rejected)) columns.push({ title: "not finite", value: (each) => each.rejected });
  for (const name of faults) columns.push({ title: name, value: (each) => each.faults[name] });
  for (const name of ["norm", "cosine"]) if (records.some((each) => each[`${name}Outliers`])) columns.push({ title: `${name} outlier`, value: (each) => each[`${name}Outliers`] });
  for (const name of ["norm", "cosine", "distance"]) if (records.some((each) => isKnown(each[name]))) columns.push({ title: name, value: (each) => each[name] });
  columns.push({ title: "last seen", value: (each) => each.lastSeen });
  if (records.some((each) => each.reason)) columns.push({ title: "last reason", value: (each) => each.reason || null, draw: (each) => each.reason, isText: true });
  return columns;
}

function suspicionBar(each) {
  if (!isKnown(each.suspicion)) return "–";
  const x = (value) => 60 * Math.min(Math.max(value, 0), 1);
  const [low, high] = [each.suspicion - each.error, each.suspicion + each.error];
  return [svg("svg", { width: 60, height: 12, class: "meter", "aria-hidden": "true" },
    svg("rect", { width: 60, height: 12, rx: 2, class: "well" }),
    svg("rect", { width: x(each.suspicion), height: 12, rx: 2, class: "fill" }),
    svg("line", { x1: 30, x2: 30, y1: 0, y2: 12, class: "half" }),
    svg("line", { x1: x(low), x2: x(high), y1: 6, y2: 6, class: "error" })), each.suspicion.toFixed(2), html("small", {}, `± ${each.error.toFixed(2)}`)];
}

function labelsOf(run) {
  if (!isKnown(run.labels)) return null;
  const found = data.labels[run.labels];
  return { size: found.num_classes, counts: unpack(found.counts) };
}

const owned = (labels, client) => Array.from(labels.counts.slice(client * labels.size, (client + 1) * labels.size));

function mainShare(labels, client) {
  const counts = owned(labels, client);
  const total = counts.reduce((sum, count) => sum + count, 0);
  return total ? Math.max(...counts) / total : NaN;
}

// The share of each class over all clients.
function sharesOfAll(labels) {
  const sums = new Float64Array(labels.size);
  labels.counts.forEach((count, k) => { sums[k % labels.size] += count; });
  const total = sums.reduce((sum, count) => sum + count, 0) || 1;
  return sums.map((count) => count / total);
}

// One bar for each class, as a share of the client's samples; a line where the share over all clients is.
function histogram(labels, each) {
  const counts = owned(labels, each.index);
  const total = counts.reduce((sum, count) => sum + count, 0) || 1;
  labels.shares ??= sharesOfAll(labels);
  const most = Math.max(...counts.map((count) => count / total), ...labels.shares, 1e-9);
  const step = Math.max(1.5, Math.min(7, 90 / labels.size));
  const top = (share) => 18 - (16 * share) / most - 1;
  const main = counts.indexOf(Math.max(...counts));
  const mostly = `mostly class ${main}: ${percent(counts[main] / total, 0)} %, over all clients ${percent(labels.shares[main], 0)} %`;
  const text = counts.map((count, label) => `${label}: ${count}`).join(", ");
  return svg("svg", { width: step * labels.size, height: 18, class: "bars", role: "img", "aria-label": `${mostly}; samples of each class: ${text}` },
    svg("title", {}, `${mostly}\n${text}`),
    counts.map((count, label) => svg("rect", { x: label * step, y: top(count / total), width: step - Math.min(1, step / 4), height: 18 - top(count / total) })),
    Array.from(labels.shares, (share, label) => svg("line", { x1: label * step, x2: (label + 1) * step - Math.min(1, step / 4), y1: top(share), y2: top(share), class: "of-all" })));
}

function drawRanking(box, records, labels, state) {
  const columns = rankingColumns(records, labels);
  const redraw = () => {
    drawRanking(box, records, labels, state);
    box.querySelector(`button[data-column="${state.column}"]`)?.focus();
  };
  const sorted = [...records].sort(byValue(columns[state.column].value, state.direction));
  const shown = sorted.slice(0, state.isAll ? undefined : SOME_RANKED);
  const head = html("thead", {}, html("tr", {}, columns.map((column, k) => sortHeading(column.title, k, state, column.first ?? -1, redraw, { class: column.isText ? "text" : null }))));
  const body = html("tbody", {}, shown.map((each) => html("tr", { class: each.isByzantine === null ? null : each.isByzantine ? "attacks" : "honest" }, columns.map((column) =>
    html(column.isName ? "th" : "td", { scope: column.isName ? "row" : null, class: column.isText ? "text" : column.value(each) === 0 ? "zero" : null }, column.draw ? column.draw(each) : short(column.value(each)))))));
  const more = sorted.length > shown.length ? html("button", { type: "button", class: "quiet", click: () => { state.isAll = true; redraw(); } }, `Show all ${sorted.length} clients`) : null;
  box.replaceChildren(html("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Clients by suspicion" }, html("table", { class: "numbers plain ranking" }, head, body)), ...(more ? [more] : []));
}
