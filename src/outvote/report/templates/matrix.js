// The matrix of an audit: clients by rounds, colour for rank and verdict.

const MARK = { absent: 0, kept: 1, dropped: 2, rejected: 3, malformed: 4, error: 5, missing: 6, late: 7, excluded: 8, unknown: 9 };
const MARK_NAMES = ["not sampled", "kept", "dropped", "rejected: not finite", "malformed reply", "client failed", "no reply", "too late", "excluded", "aggregated, verdict not reported"];
const MARK_LETTERS = ["", "", "", "×", "!", "e", "–", "l", "o", ""];
const MAX_ROUNDS = 3000;
const SOME_CLIENTS = 60;
const MAX_CLIENTS = 800;

// Unpacked: names, rounds, and an entry { client, mark, score, rank } for each verdict.
function readAudit(audit) {
  const names = Array.isArray(audit.clients) ? audit.clients : Array.from({ length: audit.clients }, (_, k) => String(k));
  const { rounds, counts, clients, marks, scores, ranks } = Object.fromEntries(
    Object.entries(audit.matrix).map(([name, packed]) => [name, unpack(packed)]));
  const byzantine = audit.byzantine ? unpack(audit.byzantine) : null;
  const roundOf = [];
  let next = 0;
  counts.forEach((count, round) => { for (let k = 0; k < count; k += 1) roundOf[next++] = round; });
  const reasons = new Map(audit.reasons.map(([row, client, text]) => [`${row} ${client}`, audit.texts[text]]));
  return { names, rounds, roundOf, clients, marks, scores, ranks, byzantine, reasons };
}

class Matrix {
  constructor(audit, order) {
    Object.assign(this, { audit, order, numShown: Math.min(SOME_CLIENTS, order.length) });
    this.first = Math.max(0, audit.rounds.length - MAX_ROUNDS);
    this.labels = html("canvas", { class: "names", "aria-hidden": "true" });
    this.cells = html("canvas", { class: "cells", tabindex: 0, role: "application",
      "aria-label": "Verdicts by client and round. Arrow keys move from cell to cell. The table below sums up each client." });
    this.box = html("div", { class: "matrix" }, this.labels, this.cells);
    this.status = html("p", { class: "note read", "aria-live": "polite" });
    this.cursor = null;
    this.cells.addEventListener("pointermove", (event) => this.point(event));
    this.cells.addEventListener("pointerdown", (event) => this.point(event));
    this.cells.addEventListener("pointerleave", leave);
    this.cells.addEventListener("keydown", (event) => this.move(event));
  }

  sort(order) {
    this.order = order;
    this.cursor = null;
    this.draw();
  }

  draw() {
    const { audit } = this;
    this.rows = new Map(this.order.slice(0, this.numShown).map((client, row) => [client, row]));
    const numRounds = audit.rounds.length - this.first;
    this.height = this.rows.size > 40 ? 13 : 17;
    const longest = Math.max(4, ...this.order.slice(0, this.numShown).map((client) => Math.min(22, audit.names[client].length)));
    const gutter = Math.min(170, 26 + 7 * longest);
    const space = Math.max(120, this.box.clientWidth - gutter - 2);
    this.width = Math.min(40, Math.max(5, space / Math.max(1, numRounds)));
    this.grid = new Int32Array(this.rows.size * numRounds).fill(-1);
    audit.clients.forEach((client, entry) => {
      const row = this.rows.get(client);
      const round = audit.roundOf[entry] - this.first;
      if (row !== undefined && round >= 0) this.grid[row * numRounds + round] = entry;
    });
    const bottom = this.rows.size * this.height;
    this.drawNames(this.pen(this.labels, gutter, bottom + 22), gutter);
    const pen = this.pen(this.cells, Math.ceil(numRounds * this.width), bottom + 22);
    this.drawCells(pen, numRounds);
    this.drawRounds(pen, numRounds, bottom);
  }

  pen(canvas, width, height) {
    const scale = Math.min(devicePixelRatio || 1, 32000 / Math.max(width, height, 1));
    Object.assign(canvas, { width: Math.ceil(width * scale), height: Math.ceil(height * scale) });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = "11px ui-sans-serif, system-ui, sans-serif";
    pen.textBaseline = "middle";
    return pen;
  }

  drawNames(pen, gutter) {
    const { names, byzantine } = this.audit;
    pen.textAlign = "right";
    for (const [client, row] of this.rows) {
      const isByzantine = byzantine !== null && byzantine[client] === 1;
      const middle = (row + 0.5) * this.height;
      pen.fillStyle = isByzantine ? token("--byzantine") : token("--soft");
      pen.font = `${isByzantine ? 600 : 400} 11px ui-sans-serif, system-ui, sans-serif`;
      const name = names[client].length > 22 ? `${names[client].slice(0, 21)}…` : names[client];
      pen.fillText(name, gutter - 20, middle);
      if (isByzantine) this.diamond(pen, gutter - 11, middle, 4);
    }
  }

  diamond(pen, x, y, size) {
    pen.beginPath();
    pen.moveTo(x, y - size);
    pen.lineTo(x + size, y);
    pen.lineTo(x, y + size);
    pen.lineTo(x - size, y);
    pen.fill();
  }

  drawCells(pen, numRounds) {
    const stripe = token("--stripe");
    const gap = this.width > 7 ? 1 : 0.5;
    for (const row of this.rows.values()) {
      pen.fillStyle = stripe;
      pen.fillRect(0, row * this.height + 1, numRounds * this.width, this.height - 2);
    }
    const colours = { ramps: ramps(), ink: token("--ink"), fault: token("--fault"), soft: token("--soft"), paper: token("--paper") };
    this.grid.forEach((entry, index) => {
      if (entry < 0) return;
      const [x, y] = [(index % numRounds) * this.width, Math.floor(index / numRounds) * this.height];
      this.drawCell(pen, entry, { x, y: y + 1, width: this.width - gap, height: this.height - 2 }, colours);
    });
    pen.textAlign = "left";
  }

  drawCell(pen, entry, { x, y, width, height }, colours) {
    const mark = this.audit.marks[entry];
    const rank = this.audit.ranks[entry] === 255 ? 0.5 : this.audit.ranks[entry] / 250;
    if (mark === MARK.kept) pen.fillStyle = cssColour(mixed(colours.ramps.kept, rank));
    else if (mark === MARK.dropped) pen.fillStyle = cssColour(mixed(colours.ramps.dropped, rank));
    else if (mark === MARK.unknown) pen.fillStyle = colours.soft;
    else pen.fillStyle = mark <= MARK.malformed ? colours.ink : colours.fault;
    // Kept is lower than dropped: the difference is to be seen without colours, too.
    if (mark === MARK.kept) pen.fillRect(x, y + height * 0.25, width, height * 0.5);
    else if (mark === MARK.unknown) pen.fillRect(x, y + height * 0.4, width, height * 0.2);
    else pen.fillRect(x, y, width, height);
    const letter = MARK_LETTERS[mark];
    if (!letter || width < 6) return;
    pen.fillStyle = colours.paper;
    pen.textAlign = "center";
    pen.fillText(letter, x + width / 2, y + height / 2 + 0.5);
  }

  drawRounds(pen, numRounds, bottom) {
    const { rounds } = this.audit;
    pen.fillStyle = token("--soft");
    pen.textAlign = "center";
    if (!numRounds) return;
    for (const tick of niceTicks(rounds[this.first], rounds[rounds.length - 1], Math.max(2, Math.floor((numRounds * this.width) / 90)))) {
      const index = rounds.indexOf(tick) - this.first;
      if (index >= 0) pen.fillText(String(tick), Math.min(Math.max(8, (index + 0.5) * this.width), numRounds * this.width - 12), bottom + 12);
    }
  }

  describe(row, round) {
    const { audit } = this;
    const numRounds = audit.rounds.length - this.first;
    const client = this.order[row];
    const entry = this.grid[row * numRounds + round];
    const truth = audit.byzantine === null ? "" : audit.byzantine[client] ? ", Byzantine" : ", honest";
    const lines = [`client ${audit.names[client]}${truth}`, `round ${audit.rounds[this.first + round]}: ${entry < 0 ? MARK_NAMES[0] : MARK_NAMES[audit.marks[entry]]}`];
    if (entry >= 0 && !Number.isNaN(audit.scores[entry])) {
      const rank = audit.ranks[entry] === 255 ? "" : `, rank ${(audit.ranks[entry] / 250).toFixed(2)}`;
      lines.push(`score ${short(audit.scores[entry])}${rank}`);
    }
    const reason = audit.reasons.get(`${this.first + round} ${client}`);
    return reason ? [...lines, reason] : lines;
  }

  point(event) {
    const [row, round] = [Math.floor(event.offsetY / this.height), Math.floor(event.offsetX / this.width)];
    if (row >= this.rows.size || round >= this.audit.rounds.length - this.first || row < 0 || round < 0) { tip.hide(); return; }
    const [name, ...rest] = this.describe(row, round);
    tip.show(event, [html("b", {}, name), ...rest.map((line) => html("span", {}, line))]);
  }

  move(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step || !this.grid.length) return;
    event.preventDefault();
    const numRounds = this.audit.rounds.length - this.first;
    const [row, round] = this.cursor ?? [0, -step[1]];
    this.cursor = [Math.min(Math.max(row + (this.cursor ? step[0] : 0), 0), this.rows.size - 1), Math.min(Math.max(round + step[1], 0), numRounds - 1)];
    this.draw();
    const pen = this.cells.getContext("2d");
    pen.strokeStyle = token("--accent");
    pen.lineWidth = 2;
    pen.strokeRect(this.cursor[1] * this.width - 1, this.cursor[0] * this.height, this.width + 1, this.height);
    this.box.scrollLeft = Math.max(0, this.cursor[1] * this.width - this.box.clientWidth / 2);
    this.status.textContent = this.describe(...this.cursor).join("; ");
  }
}
