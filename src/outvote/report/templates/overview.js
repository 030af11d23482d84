// The overview of a log: outcomes of clients in all and by round, and reasons.

// Those that are fine are blue, the rule's own drops orange, all others have colours of their own.
const OUTCOME_NAMES = { "not finite": "rejected: not finite", malformed: "malformed reply", error: "client failed", missing: "no reply", late: "too late", aggregated: "aggregated, verdict not reported" };

function overviewOf(run) {
  const found = run.overview;
  if (!found) return null;
  const names = Object.keys(found.totals);
  const asked = names.reduce((sum, name) => sum + found.totals[name], 0);
  const numClients = Array.isArray(run.audit.clients) ? run.audit.clients.length : run.audit.clients;
  const count = (name) => found.totals[name].toLocaleString("en");
  const share = (name) => (asked ? html("small", { class: "soft" }, ` ${percent(found.totals[name] / asked, 1)} %`) : null);
  const box = tiles([["rounds", found.num_rounds.toLocaleString("en")], ["clients", numClients.toLocaleString("en")],
    ...names.map((name) => [OUTCOME_NAMES[name] ?? name, [count(name), share(name)]])]);
  const plot = html("div", { class: "plot" });
  const keys = html("div", { class: "keys" });
  const caption = html("figcaption", {}, found.every > 1 ? `Clients by outcome, sums of ${found.every} rounds` : "Clients by outcome, round by round");
  return { nodes: [html("h4", {}, "Overview"), box, html("figure", { class: "panel overview" }, caption, keys, plot), ...reasonsOf(found)], draw: () => drawOutcomes(found, plot, keys) };
}

function drawOutcomes(found, plot, keys) {
  const rounds = unpack(found.rounds);
  const lines = Object.entries(found.by_round).map(([name, packed], k) => {
    const counts = unpack(packed);
    return { label: OUTCOME_NAMES[name] ?? name, colour: hues()[k % hues().length], dash: k > 1 ? ["6 3", "2 3", "8 3 2 3"][(k - 2) % 3] : null,
      points: Array.from(rounds, (round, row) => [round, counts[row]]) };
  });
  keys.replaceChildren(...lines.map((line) => html("span", {}, swatch(line), line.label)));
  if (!rounds.length) { plot.replaceChildren(html("p", { class: "note" }, "no round yet")); return; }
  const text = lines.map((line) => `${line.label} ${line.points.reduce((sum, [, count]) => sum + count, 0)}`).join(", ");
  const most = Math.max(1, ...lines.flatMap((line) => line.points.map(([, count]) => count)));
  drawChart(plot, { lines, label: `Clients by outcome and round, in all: ${text}`, format: (value) => (Number.isInteger(value) ? String(value) : ""), range: [0, most * 1.06, false], height: 190 });
}

function reasonsOf(found) {
  if (!found.reasons.length) return [];
  const rows = found.reasons.map(([text, count]) => html("tr", {}, html("th", { scope: "row" }, text), html("td", {}, count.toLocaleString("en"))));
  const more = found.num_reasons > rows.length ? [html("p", { class: "note" }, `${(found.num_reasons - rows.length).toLocaleString("en")} other reasons are in the verdicts below.`)] : [];
  return [html("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Reasons" }, html("table", { class: "numbers plain reasons" },
    html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "reason"), html("th", { scope: "col" }, "how often"))), html("tbody", {}, rows))), ...more];
}
