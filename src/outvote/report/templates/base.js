// What all parts share: the data, elements, numbers, colours, files.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

// Text is always set as text: what comes from files can never become markup.
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Packed arrays: whole numbers; counts, 0 if unknown; shares in ten thousandths; measured numbers by code.
function codes(packed) {
  const text = atob(packed.data);
  const bytes = Uint8Array.from(text, (character) => character.charCodeAt(0));
  const kind = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array }[packed.bytes];
  return new kind(bytes.buffer);
}

function unpack(packed) {
  const found = codes(packed);
  if (packed.kind === "share") return Float64Array.from(found, (code) => (code === 65535 ? NaN : code / 10000));
  if (packed.kind === "count") return Float64Array.from(found, (code) => (code === 0 ? NaN : code - 1));
  if (packed.kind === undefined) return found;
  const isLog = packed.kind === "log";
  const value = (code) => {
    if (code === 65535) return Infinity;
    if (code === 65534) return NaN;
    if (code === 0 && isLog) return 0;
    const part = (code - 1) / 65532;
    const scaled = packed.low * (1 - part) + packed.high * part;
    return isLog ? Math.exp(scaled) : scaled;
  };
  return Float64Array.from(found, value);
}

const isKnown = (value) => value !== null && value !== undefined && !Number.isNaN(value);
const percent = (share, digits = 1) => (isKnown(share) ? (100 * share).toFixed(digits) : "–");
const fixed = (value, digits = 2) => (isKnown(value) ? value.toFixed(digits).replace("-", "−") : "–");
const signed = (value) => (isKnown(value) ? (value >= 0 ? "+" : "−") + Math.abs(value).toFixed(2) : "–");

function short(value) {
  if (!isKnown(value)) return "–";
  if (!Number.isFinite(value)) return "∞";
  const size = Math.abs(value);
  if (value !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(2).replace("-", "−");
  return String(Number(value.toPrecision(3))).replace("-", "−");
}

// Colours that people with any kind of colour vision can distinguish.
const HUES = {
  light: ["#0072b2", "#d55e00", "#00876a", "#b0528a", "#b58900", "#3f9fd8", "#6b5bb5", "#6b6b6b"],
  dark: ["#4da6e0", "#ff8a3d", "#2cc4a0", "#e08ec0", "#e6b422", "#8fd0ff", "#a99bf0", "#a8a8a8"],
};
const RAMPS = {
  light: { good: ["#f1f5f4", "#cfe3e2", "#94c4c7", "#4b94a4", "#1c5f78", "#0d3550"],
           bad: ["#faf5ee", "#f6dfc0", "#edbb7f", "#d98a3d", "#b05a12", "#6f3208"],
           both: ["#a6510a", "#dd9a4d", "#f3dcbc", "#f6f6f3", "#c6deea", "#5a9fc4", "#1a5f92"],
           kept: ["#c3d9e8", "#93bdd8", "#5797c2", "#1f6697"],
           dropped: ["#f8d3a4", "#f2ae62", "#e07c25", "#a84706"] },
  dark: { good: ["#17222a", "#1b3b4a", "#28647a", "#4d96a3", "#92c8c3", "#e0f2ea"],
          bad: ["#241d16", "#4a3216", "#85521a", "#c07a2c", "#e8ad66", "#fbe3c0"],
          both: ["#f0a45a", "#a8662a", "#4d3820", "#23272b", "#20445a", "#3c83ac", "#8ccbf0"],
          kept: ["#2d4658", "#2f5f80", "#3a86b4", "#74bfec"],
          dropped: ["#64431d", "#955a1e", "#d58029", "#ffb976"] },
};

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
const hues = () => HUES[isDark() ? "dark" : "light"];
const ramps = () => RAMPS[isDark() ? "dark" : "light"];
const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const channels = (colour) => [1, 3, 5].map((from) => parseInt(colour.slice(from, from + 2), 16));

// A colour of a ramp; part is from 0 to 1.
function mixed(ramp, part) {
  const position = Math.min(Math.max(part, 0), 1) * (ramp.length - 1);
  const first = Math.min(Math.floor(position), ramp.length - 2);
  const [from, to] = [channels(ramp[first]), channels(ramp[first + 1])];
  return from.map((value, k) => Math.round(value + (to[k] - value) * (position - first)));
}
const cssColour = (rgb) => `rgb(${rgb.join(",")})`;

// Black or white, whichever has more contrast.
function inkOn(rgb) {
  const linear = rgb.map((value) => (value / 255 <= 0.04 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return (light + 0.05) ** 2 > 0.0525 ? "#000000" : "#ffffff";
}

// A cell that begins like a formula would be run by a spreadsheet: it gets an apostrophe.
function csvField(value) {
  if (typeof value !== "string") return isKnown(value) ? String(value) : "";
  const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function download(name, rows) {
  const text = rows.map((row) => row.map(csvField).join(",")).join("\r\n") + "\r\n";
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const link = html("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// The one tip of the page, beside the pointer and inside the window.
const tip = {
  show(event, lines) {
    const node = byId("tip");
    node.replaceChildren(...lines);
    node.hidden = false;
    const { width, height } = node.getBoundingClientRect();
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - width - 10 : event.clientX + 14;
    node.style.left = `${Math.max(4, left)}px`;
    node.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - height - 4))}px`;
  },
  hide() {
    byId("tip").hidden = true;
  },
};

// A finger that is lifted leaves, too; its tip stays until something else is touched.
const leave = (event) => { if (event.pointerType !== "touch") tip.hide(); };

// A name that may be broken after a bracket where the line is short.
const breakable = (name) => (name.match(/[^(,]*[(,]?/g) ?? []).filter(Boolean).flatMap((part, k) => (k ? [html("wbr"), part] : [part]));

// Sorting shared by all tables: unknown values stay last.
function byValue(value, direction) {
  return (a, b) => {
    const [first, second] = [value(a), value(b)];
    if (!isKnown(first) || !isKnown(second)) return isKnown(second) - isKnown(first);
    return (first < second ? -1 : first > second ? 1 : 0) * direction;
  };
}

// A heading that sorts; state is { column, direction }, and changed() draws again.
function sortHeading(title, column, state, first, changed, attributes = {}) {
  const isActive = state.column === column;
  const press = () => {
    const direction = isActive ? -state.direction : first;
    Object.assign(state, { column, direction });
    changed();
  };
  const sort = isActive ? (state.direction > 0 ? "ascending" : "descending") : "none";
  return html("th", { scope: "col", "aria-sort": sort, ...attributes },
    html("button", { type: "button", click: press, "data-column": column }, title));
}
