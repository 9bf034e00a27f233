(() => {
"use strict";
const $ = id => document.getElementById(id);
const D = JSON.parse($("data").textContent);
$("data").textContent = "";
const {k: K, n: N, p: P, s: S, d: L, e: E, i: IN, o: OUT, c: C, f: F, r: R, x: X, names, kinds: KINDS} = D;
const SUM = D.summary, COUNT = K.length;
const CACHED = 1, BLOCKED = 2, ORPHAN = 4, REPLAYED = 8;
const kindOf = i => KINDS[K[i]], nameOf = i => names[N[i]], errorOf = i => names[E[i]];
const [PATTERN, STEP, MODEL, TOOL, ATTEMPT, WAIT, EVENT] = KINDS.map((_, i) => i);
const KIND_NAMES = {pattern: "Patterns", step: "Steps", model: "Model calls", tool: "Tool calls", attempt: "Attempts", wait: "Waits", event: "Events", other: "Others"};
const WAITS = ["permit", "slot", "backoff", "retry_after", "breaker", "approval"];
const ROW = 26, HEAD = 26;

// --- words and numbers ---------------------------------------------------------
const el = (tag, cls, text) => {
  const made = document.createElement(tag);
  if (cls) made.className = cls;
  if (text !== undefined) made.textContent = text;
  return made;
};
const whole = new Intl.NumberFormat("en");
const int = value => whole.format(value);
const short = value => value < 10000 ? int(value) : value < 1e6 ? (value / 1e3).toFixed(value < 1e5 ? 1 : 0) + "k" : (value / 1e6).toFixed(value < 1e7 ? 2 : 1) + "M";
const money = value => value == null ? "–" : D.unit + (value === 0 ? "0" : value < 0.01 ? value.toPrecision(2).replace(/e.*/, m => m) : value < 1 ? value.toFixed(4) : value.toFixed(2));
const pad = value => String(value).padStart(2, "0");
function time(us) {
  if (us < 0) return "−" + time(-us);
  if (us < 1) return "0";
  if (us < 1000) return Math.round(us) + " µs";
  if (us < 999500) return (us / 1000).toPrecision(3).replace(/\.0+$|(\.\d*?)0+$/, "$1") + " ms";
  const s = us / 1e6;
  if (s < 59.95) return (s < 9.995 ? s.toFixed(2) : s.toFixed(1)) + " s";
  const r = Math.round(s);
  if (r < 3600) return Math.floor(r / 60) + " m " + pad(r % 60) + " s";
  return int(Math.floor(r / 3600)) + " h " + pad(Math.floor(r % 3600 / 60)) + " m";
}
const seconds = value => value == null ? "–" : time(value * 1e6);
const plural = (n, one, many) => `${int(n)} ${n === 1 ? one : many || one + "s"}`;
const absolute = us => new Date((SUM.started || 0) * 1000 + us / 1000);
const kindClass = i => K[i] === WAIT ? "wait " + (WAITS.includes(nameOf(i)) ? nameOf(i) : "")
  : K[i] === ATTEMPT && P[i] >= 0 ? "attempt of-" + kindOf(P[i]) : kindOf(i);

// --- the tree ------------------------------------------------------------------
const first = new Int32Array(COUNT).fill(-1), next = new Int32Array(COUNT).fill(-1);
let roots = -1;
for (let i = COUNT - 1; i >= 0; i--) {
  const p = P[i];
  if (p < 0) { next[i] = roots; roots = i; } else { next[i] = first[p]; first[p] = i; }
}
let END = 1;
for (let i = 0; i < COUNT; i++) END = Math.max(END, S[i] + Math.max(L[i], 0));
END = Math.max(END, SUM.seconds * 1e6, 1000);
const START = -END * 0.004;
END *= 1.006;
const stop = i => L[i] < 0 ? END : S[i] + L[i];
const isCall = i => K[i] === MODEL || K[i] === TOOL;
const failed = i => E[i] !== 0;
const open = new Uint8Array(COUNT);
for (let i = 0; i < COUNT; i++) open[i] = isCall(i) ? 0 : 1;
const order = new Int32Array(COUNT);      // place in the whole tree
const troubles = [];                      // what failed in the end, in that order
{
  let at = 0;
  const stack = [];
  for (let i = roots; i >= 0 || stack.length;) {
    if (i < 0) { i = next[stack.pop()]; continue; }
    order[i] = at++;
    if (failed(i) && (K[i] !== ATTEMPT || P[i] < 0)) troubles.push(i);
    stack.push(i);
    i = first[i];
  }
}

// --- state -----------------------------------------------------------------------
const state = {query: "", errors: false, name: -1, kind: -1, hide: new Set(), t0: START, t1: END, selected: -1};
let rows = new Int32Array(0), depth = new Uint8Array(0), place = new Map();
let keep = null;                          // null = no filter; 0 no, 1 on the way, 2 hit
let hits = COUNT;

let hay = null;
function texts() {
  if (hay) return hay;
  hay = new Array(COUNT);
  for (let i = 0; i < COUNT; i++)
    hay[i] = (nameOf(i) + "\n" + kindOf(i) + "\n" + errorOf(i) + "\n" + names[R[i]] + "\n" + JSON.stringify(X[i]).replace(/\\n/g, " ")).toLowerCase();
  return hay;
}

function filter() {
  const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length && !state.errors && state.name < 0) { keep = null; hits = COUNT; return; }
  const all = words.length ? texts() : null;
  keep = new Uint8Array(COUNT);
  hits = 0;
  for (let i = 0; i < COUNT; i++) {
    if (state.errors && (!failed(i) || K[i] === ATTEMPT && P[i] >= 0)) continue;
    if (state.name >= 0 && (N[i] !== state.name || K[i] !== state.kind)) continue;
    if (state.hide.has(K[i])) continue;
    if (all && !words.every(word => all[i].includes(word))) continue;
    keep[i] = 2;
    hits++;
    for (let p = P[i]; p >= 0 && !keep[p]; p = P[p]) keep[p] = 1;
  }
}

// What is below a hit may be looked at too; of a failed pattern only what failed.
const passesOn = i => keep[i] === 2 && (!state.errors || isCall(i));

function flatten() {
  const list = [], levels = [], stack = [];
  let i = roots, level = 0, below = 0;
  for (;;) {
    if (i < 0) {
      if (!stack.length) break;
      const back = stack.pop();
      i = next[back.i]; level = back.level; below = back.below;
      continue;
    }
    if (keep && !keep[i] && !below) { i = next[i]; continue; }
    const hidden = state.hide.has(K[i]);
    if (!hidden) { list.push(i); levels.push(level); }
    const deeper = below || (keep && passesOn(i) ? 1 : 0);
    if (first[i] >= 0 && (hidden || open[i] || keep && keep[i] === 1)) {
      stack.push({i, level, below});
      if (!hidden) level++;
      below = deeper;
      i = first[i];
    } else i = next[i];
  }
  rows = Int32Array.from(list);
  depth = Uint8Array.from(levels, v => Math.min(v, 255));
  place = new Map();
  for (let r = 0; r < rows.length; r++) place.set(rows[r], r);
}

function rebuild() {
  flatten();
  $("rows").style.height = rows.length * ROW + "px";
  $("table").setAttribute("aria-rowcount", rows.length + 1);
  $("hits").textContent = keep ? `${int(hits)} of ${int(COUNT)}` : "";
  const none = $("none");
  none.hidden = rows.length > 0 || COUNT === 0;
  none.textContent = "Nothing fits the search and the filters. Esc clears them.";
  draw();
}
function refilter() { filter(); rebuild(); drawMap(); }

// --- rows ------------------------------------------------------------------------
const table = $("table"), body = $("rows"), pool = [];
let width = 0, left = 0, scheduled = false;
const px = us => (us - state.t0) / (state.t1 - state.t0) * width;
const us = x => state.t0 + x / width * (state.t1 - state.t0);

function measure() {
  const cell = $("axis").parentNode;
  left = cell.offsetLeft;
  width = Math.max(cell.clientWidth, 1);
}
function draw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => { scheduled = false; render(); });
}
function makeRow() {
  const row = el("div", "row");
  row.setAttribute("role", "row");
  const cells = ["c-name", "c-num c-tok", "c-num c-cost", "c-num c-dur", "c-time"].map(cls => {
    const cell = el("span", cls);
    cell.setAttribute("role", "gridcell");
    row.append(cell);
    return cell;
  });
  const [name, tok, cost, dur, line] = cells;
  const twist = el("i", "twist"), dot = el("i"), label = el("span"), tag = el("span");
  twist.setAttribute("aria-hidden", "true");
  name.append(twist, dot, label, tag);
  const made = {row, name, tok, cost, dur, line, twist, dot, label, tag, i: -1};
  row.made = made;
  return made;
}
function tagOf(i) {
  const x = X[i], parts = [];
  if (failed(i)) parts.push(errorOf(i));
  if (x.attempts > 1) parts.push(`${x.attempts} attempts`);
  if (F[i] & CACHED) parts.push("cached");
  if (F[i] & REPLAYED) parts.push("from the journal");
  if (F[i] & BLOCKED && !failed(i)) parts.push("blocked");
  if (L[i] < 0) parts.push("no end");
  if (F[i] & ORPHAN) parts.push("no start");
  return parts.join(" · ");
}
function fill(made, r, i) {
  const {row} = made, bad = failed(i), call = kindOf(i);
  made.i = i;
  row.id = "r" + i;
  row.className = "row" + (bad && (K[i] !== ATTEMPT || P[i] < 0) ? " failed" : "") + (keep ? keep[i] === 2 ? state.query ? " hit" : "" : " near" : "");
  row.style.top = r * ROW + "px";
  row.setAttribute("aria-rowindex", r + 2);
  row.setAttribute("aria-level", depth[r] + 1);
  row.setAttribute("aria-selected", i === state.selected);
  const kids = first[i] >= 0;
  if (kids) row.setAttribute("aria-expanded", !!open[i]); else row.removeAttribute("aria-expanded");
  made.name.style.paddingLeft = 10 + Math.min(depth[r], 14) * 14 + "px";
  made.twist.className = "twist" + (kids ? open[i] ? " open" : " shut" : "");
  made.dot.className = "dot " + kindClass(i);
  made.label.className = "label " + call + "-l";
  made.label.textContent = K[i] === WAIT ? "wait: " + nameOf(i).replace("_", " ") : nameOf(i);
  const tag = tagOf(i);
  made.tag.className = "tag" + (bad ? " bad" : "");
  made.tag.textContent = bad ? "✕ " + tag : tag;
  row.title = "";
  made.tok.textContent = IN[i] || OUT[i] ? short(IN[i]) + " / " + short(OUT[i]) : "";
  made.cost.textContent = C[i] ? money(C[i]) : "";
  made.dur.textContent = L[i] < 0 ? "…" : K[i] === EVENT ? "" : time(L[i]);
  bar(made.line, i);
}
function bar(cell, i) {
  const a = px(S[i]), b = px(stop(i));
  if (b < 0 || a > width) {
    cell.replaceChildren(el("span", "off " + (b < 0 ? "l" : "r"), b < 0 ? "‹" : "›"));
    return;
  }
  const from = Math.max(a, -4), to = Math.min(Math.max(b, a + 2), width + 4);
  const made = el("i", "b " + kindClass(i));
  made.style.left = from + "px";
  made.style.width = Math.max(to - from, 2) + "px";
  if (failed(i)) made.classList.add("failed");
  if (L[i] < 0) made.classList.add("open");
  if (F[i] & (CACHED | REPLAYED)) made.classList.add("cached");
  if (isCall(i)) {
    let drawn = 0, solid = 0;
    for (let c = first[i]; c >= 0 && drawn < 80; c = next[c]) {
      if (K[c] !== ATTEMPT && K[c] !== WAIT) continue;
      const l = Math.max(px(S[c]), from), r = Math.min(px(stop(c)), to);
      if (r < from || l > to) continue;
      const part = el("i", kindClass(c) + (failed(c) ? " failed" : ""));
      part.style.left = l - from + "px";
      part.style.width = Math.max(r - l, 1) + "px";
      made.append(part);
      drawn++;
      if (K[c] === ATTEMPT) solid++;
    }
    if (solid) made.classList.add("has");
  }
  cell.replaceChildren(made);
}
let printing = false;
function render() {
  if (!COUNT || table.offsetParent === null && !printing) return;
  const height = table.clientHeight - HEAD, top = table.scrollTop;
  const from = printing ? 0 : Math.max(Math.floor(top / ROW) - 4, 0);
  const to = Math.min(printing ? 2000 : Math.ceil((top + height) / ROW) + 4, rows.length);
  let used = 0;
  for (let r = from; r < to; r++) {
    const made = pool[used] || (pool[used] = makeRow());
    if (!made.row.isConnected) body.append(made.row);
    fill(made, r, rows[r]);
    used++;
  }
  while (pool.length > used) pool.pop().row.remove();
  const at = place.get(state.selected);
  if (at !== undefined && at >= from && at < to) table.setAttribute("aria-activedescendant", "r" + state.selected);
  else table.removeAttribute("aria-activedescendant");
  drawAxis(height);
  drawBrush();
}

// --- the axis --------------------------------------------------------------------
function ticks() {
  const span = state.t1 - state.t0, rough = span / Math.max(Math.floor(width / 110), 1);
  let step = Math.pow(10, Math.floor(Math.log10(rough)));
  if (rough >= 6e7) {
    step = [6e7, 12e7, 3e8, 6e8, 12e8, 18e8, 36e8, 72e8, 216e8, 432e8, 864e8].find(v => v >= rough) || Math.ceil(rough / 864e8) * 864e8;
  } else if (rough > 1e7) step = [15e6, 3e7, 6e7].find(v => v >= rough);
  else for (const m of [1, 2, 5, 10]) if (m * step >= rough) { step *= m; break; }
  const found = [];
  for (let t = Math.ceil(state.t0 / step) * step; t <= state.t1; t += step) found.push(t);
  return {found, step};
}
function tickText(t, step) {
  if (Math.abs(t) < step / 2) return "0";
  if (step >= 6e7) { const m = Math.round(t / 6e7); return m >= 60 ? `${Math.floor(m / 60)} h ${pad(m % 60)} m` : m + " m"; }
  if (t >= 6e7) { const s = t / 1e6; return `${Math.floor(s / 60)} m ${(s % 60).toFixed(step < 1e6 ? Math.min(Math.ceil(-Math.log10(step / 1e6)), 6) : 0).padStart(2, "0")} s`; }
  if (step >= 1e6) return (t / 1e6).toFixed(0) + " s";
  if (t >= 1e6 || step >= 1e5) return (t / 1e6).toFixed(Math.min(Math.ceil(-Math.log10(step / 1e6) - 1e-9), 6)) + " s";
  if (step >= 1e3) return (t / 1e3).toFixed(0) + " ms";
  return t >= 1e3 || step >= 100 ? (t / 1e3).toFixed(Math.min(Math.ceil(-Math.log10(step / 1e3) - 1e-9), 3)) + " ms" : Math.round(t) + " µs";
}
let mouse = null, range = null;
function drawAxis(height) {
  const axis = $("axis"), grid = $("grid"), {found, step} = ticks();
  const marks = [], lines = [];
  for (const t of found) {
    const x = px(t);
    const mark = el("span", "", tickText(t, step));
    mark.style.left = x + "px";
    if (x < width - 40) marks.push(mark);
    const line = el("i");
    line.style.left = left + x + "px";
    line.style.height = height + "px";
    lines.push(line);
  }
  if (mouse !== null) {
    const bubble = el("b", "", time(us(mouse)));
    bubble.style.left = Math.min(Math.max(mouse, 28), width - 28) + "px";
    marks.push(bubble);
    const line = el("i", "cross");
    line.style.left = left + mouse + "px";
    line.style.height = height + "px";
    lines.push(line);
  }
  if (range) {
    const mark = el("em");
    mark.style.left = Math.min(...range) + "px";
    mark.style.width = Math.abs(range[1] - range[0]) + "px";
    marks.push(mark);
  }
  axis.replaceChildren(...marks);
  grid.replaceChildren(...lines);
}
function view(t0, t1) {
  const least = 20, all = END - START;
  let span = Math.min(Math.max(t1 - t0, least), all);
  const middle = (t0 + t1) / 2;
  t0 = Math.min(Math.max(t1 - t0 === span ? t0 : middle - span / 2, START), END - span);
  state.t0 = t0;
  state.t1 = t0 + span;
  draw();
}
function zoom(by, at) {
  const point = at === undefined ? (state.t0 + state.t1) / 2 : at;
  view(point - (point - state.t0) * by, point + (state.t1 - point) * by);
}
const fit = () => view(START, END);
function pan(share) { const d = (state.t1 - state.t0) * share; view(state.t0 + d, state.t1 + d); }
function zoomTo(i) {
  const room = Math.max((stop(i) - S[i]) * 0.08, 50);
  view(S[i] - room, stop(i) + room);
}

// --- the overview ------------------------------------------------------------------
function drawMap() {
  const canvas = $("map"), box = canvas.parentNode.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  const w = Math.max(Math.round(box.width), 1), h = Math.max(Math.round(box.height), 1);
  canvas.width = w * ratio;
  canvas.height = h * ratio;
  const paint = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  paint.scale(ratio, ratio);
  const lanes = {model: new Float64Array(w + 2), tool: new Float64Array(w + 2), wait: new Float64Array(w + 2)};
  const bad = new Uint8Array(w + 1), scale = w / (END - START);
  const at = t => Math.min(Math.max(Math.floor((t - START) * scale), 0), w - 1);
  for (let i = 0; i < COUNT; i++) {
    if (keep && keep[i] !== 2) continue;
    const lane = lanes[kindOf(i)];
    if (failed(i) && K[i] !== ATTEMPT) bad[at(stop(i))] = 1;
    if (!lane || state.hide.has(K[i])) continue;
    lane[at(S[i])]++;
    lane[at(stop(i)) + 1]--;
  }
  let most = 1, sums = {model: 0, tool: 0, wait: 0};
  for (let x = 0; x < w; x++) {
    let total = 0;
    for (const name in lanes) { sums[name] += lanes[name][x]; lanes[name][x] = sums[name]; if (name !== "wait") total += sums[name]; }
    most = Math.max(most, total);
  }
  const colour = name => style.getPropertyValue("--" + name).trim();
  const unit = (h - 12) / most;
  for (let x = 0; x < w; x++) {
    let y = h - 5;
    for (const name of ["model", "tool"]) {
      const tall = lanes[name][x] * unit;
      if (tall > 0) { paint.fillStyle = colourOf(name); paint.fillRect(x, y - Math.max(tall, 1), 1, Math.max(tall, 1)); y -= tall; }
    }
    if (lanes.wait[x] > 0) {
      const tall = Math.min(lanes.wait[x] * unit, h - 12);
      paint.fillStyle = colourOf("permit");
      paint.globalAlpha = 0.75;
      if (x % 3) paint.fillRect(x, h - 5 - tall, 1, Math.max(Math.min(tall, 2), 1));
      paint.globalAlpha = 1;
    }
    if (bad[x]) { paint.fillStyle = colourOf("error"); paint.fillRect(x - 0.5, h - 4, 2, 4); }
  }
  paint.fillStyle = colour("quiet");
  paint.font = "10px system-ui,sans-serif";
  paint.fillText(`up to ${plural(most, "call")} at once`, 6, 11);
  function colourOf(name) { return cache[name] || (cache[name] = colour(name)); }
}
let cache = {};
function drawBrush() {
  const brush = $("brush"), w = $("map").clientWidth, all = END - START;
  const a = (state.t0 - START) / all * w, b = (state.t1 - START) / all * w;
  brush.hidden = b - a > w - 1;
  brush.style.left = a + "px";
  brush.style.width = b - a + "px";
}

// --- selection -----------------------------------------------------------------------
function select(i, show) {
  state.selected = i;
  if (i >= 0 && (show || !$("detail").hidden)) detail(i);
  draw();
}
function scrollTo(r) {
  const top = r * ROW, height = table.clientHeight - HEAD;
  if (top < table.scrollTop) table.scrollTop = top;
  else if (top + ROW > table.scrollTop + height) table.scrollTop = top + ROW - height;
}
function move(to) {
  if (!rows.length) return;
  const r = Math.min(Math.max(to, 0), rows.length - 1);
  select(rows[r]);
  scrollTo(r);
}
function reveal(i) {
  for (let p = P[i]; p >= 0; p = P[p]) open[p] = 1;
  flattenAgain();
  select(i);
  const r = place.get(i);
  if (r === undefined) return false;
  const height = table.clientHeight - HEAD, top = r * ROW;
  if (top < table.scrollTop + ROW || top > table.scrollTop + height - 2 * ROW) table.scrollTop = top - height / 2;
  if (S[i] > state.t1 || stop(i) < state.t0) {
    const half = (state.t1 - state.t0) / 2, middle = Math.min(S[i] + half / 2, (S[i] + stop(i)) / 2);
    view(middle - half, middle + half);
  }
  return true;
}
function flattenAgain() { rebuild(); }
function go(list, step) {
  const usable = list.filter(i => !keep || keep[i] === 2);
  if (!usable.length) { say("Nothing failed."); return; }
  const here = state.selected >= 0 ? order[state.selected] : -1;
  let at = step > 0 ? usable.findIndex(i => order[i] > here) : usable.findLastIndex(i => order[i] < (here < 0 ? Infinity : here));
  if (at < 0) at = step > 0 ? 0 : usable.length - 1;
  reveal(usable[at]);
  say(`${at + 1} of ${usable.length}: ${nameOf(usable[at])}, ${errorOf(usable[at])}`);
}
function goHit(step) {
  if (!keep || !hits) return;
  const list = [];
  for (let i = 0; i < COUNT; i++) if (keep[i] === 2) list.push(i);
  list.sort((a, b) => order[a] - order[b]);
  const here = state.selected >= 0 ? order[state.selected] : -1;
  let at = step > 0 ? list.findIndex(i => order[i] > here) : list.findLastIndex(i => order[i] < (here < 0 ? Infinity : here));
  if (at < 0) at = step > 0 ? 0 : list.length - 1;
  reveal(list[at]);
  $("hits").textContent = `${int(at + 1)} of ${int(hits)}`;
}
const say = text => { $("said").textContent = text; };
function toggle(i, to) {
  if (first[i] < 0) return;
  open[i] = to === undefined ? open[i] ? 0 : 1 : to;
  rebuild();
}

// --- details ---------------------------------------------------------------------------
function fact(list, name, value) {
  if (value === "" || value == null) return;
  list.append(el("dt", "", name));
  const dd = el("dd");
  dd.append(value);
  list.append(dd);
}
function link(i, text) {
  const made = el("button", "link", text);
  made.onclick = () => { reveal(i); detail(i); };
  return made;
}
function status(i) {
  if (failed(i)) return el("span", "badge bad", "✕ " + errorOf(i));
  return el("span", "badge", L[i] < 0 ? "no end" : F[i] & CACHED ? "ok, cached" : F[i] & REPLAYED ? "ok, from the journal" : K[i] === WAIT || K[i] === EVENT ? "done" : "ok");
}
function detail(i) {
  const box = $("detail"), x = X[i];
  const head = el("header"), close = el("button", "icon", "✕");
  close.setAttribute("aria-label", "Close details");
  close.title = "Close (Esc)";
  close.onclick = () => { closeDetail(); table.focus(); };
  head.append(el("h2", "", nameOf(i)), close);
  const kind = el("p", "kind");
  kind.append(el("i", "dot " + kindClass(i)), el("span", "", K[i] === EVENT ? "event" : KIND_NAMES[kindOf(i)].replace(/s$/, "").toLowerCase()), status(i));
  const facts = el("dl", "facts");
  fact(facts, "Began", `${time(S[i])} after the start`);
  fact(facts, "Clock", absolute(S[i]).toISOString().replace("T", " "));
  if (K[i] !== EVENT) fact(facts, "Duration", L[i] < 0 ? "no end in this trace" : time(L[i]));
  fact(facts, "Attempts", x.attempts > 0 ? int(x.attempts) : "");
  if (IN[i] || OUT[i]) fact(facts, "Tokens", `${int(IN[i])} in, ${int(OUT[i])} out${x.cached_tokens ? `, ${int(x.cached_tokens)} cached` : ""}`);
  if (C[i]) fact(facts, "Cost", money(C[i]));
  fact(facts, "Provider", typeof x.provider === "string" ? x.provider : "");
  fact(facts, "Process", x.process == null ? "" : String(x.process));
  fact(facts, "Request", names[R[i]]);
  if (P[i] >= 0) fact(facts, "Part of", link(P[i], nameOf(P[i])));
  box.replaceChildren(head, kind, el("h3", "", "Facts"), facts, ...parts(i), ...payload(x));
  box.hidden = false;
  box.scrollTop = 0;
  remeasure();
}
function parts(i) {
  const list = [], sums = new Map();
  for (let c = first[i]; c >= 0; c = next[c]) {
    if (K[c] === EVENT) continue;
    const key = kindClass(c) + "|" + (K[c] === ATTEMPT ? failed(c) ? "failed attempts" : "attempts" : nameOf(c).replace("_", " "));
    const sum = sums.get(key) || {cls: kindClass(c) + (failed(c) && K[c] === ATTEMPT ? " error" : ""), name: key.split("|")[1], total: 0, count: 0, at: c};
    sum.total += Math.max(L[c], 0);
    sum.count++;
    sums.set(key, sum);
    list.push(c);
  }
  if (!list.length) return [];
  const all = [...sums.values()].sort((a, b) => b.total - a.total).slice(0, 12);
  const whole = all.reduce((a, b) => a + b.total, 0), mine = Math.max(L[i], 0);
  const strip = el("div", "split-bar");
  strip.setAttribute("aria-hidden", "true");
  const table = el("div", "parts");
  for (const part of all) {
    const piece = el("i", part.cls);
    piece.style.width = part.total / Math.max(whole, mine, 1) * 100 + "%";
    strip.append(piece);
    const named = link(part.at, part.name);
    table.append(el("i", "dot " + part.cls), named, el("b", "quiet", part.count > 1 ? "× " + int(part.count) : ""), el("b", "", time(part.total)));
  }
  return [el("h3", "", "Where the time went"), strip, table];
}
function payload(x) {
  const list = el("dl", "load");
  for (const [key, value] of Object.entries(x)) {
    if (value === null || value === "") continue;
    list.append(el("dt", "", key));
    const dd = el("dd"), plain = typeof value !== "object";
    const text = plain ? String(value) : JSON.stringify(value, null, 2);
    dd.append(el("pre", "value", text));
    list.append(dd);
  }
  return list.children.length ? [el("h3", "", "Payload"), list] : [];
}
function closeDetail() { $("detail").hidden = true; remeasure(); }
function remeasure() { measure(); draw(); }

// --- totals and tables --------------------------------------------------------------------
function figures() {
  const m = SUM.model_calls, t = SUM.tool_calls, errors = Object.values(SUM.errors).reduce((a, b) => a + b, 0);
  const box = $("figures");
  const add = (name, value, small, bad) => {
    const part = el("div", bad ? "bad" : "");
    const dd = el("dd", "", value);
    if (small) dd.append(el("small", "", small));
    part.append(el("dt", "", name), dd);
    box.append(part);
  };
  add("Duration", seconds(SUM.seconds));
  add("Model calls", int(m.count), m.errors ? `${int(m.errors)} failed` : m.p95 == null ? "" : "p95 " + seconds(m.p95));
  add("Tool calls", int(t.count), t.errors ? `${int(t.errors)} failed` : t.cached ? `${int(t.cached)} cached` : t.p95 == null ? "" : "p95 " + seconds(t.p95));
  add("Tokens in", short(m.input_tokens), m.cached_tokens ? `${short(m.cached_tokens)} cached` : "");
  add("Tokens out", short(m.output_tokens));
  add("Cost", money(m.cost));
  add("Waited", seconds(SUM.waits.seconds), SUM.waits.count ? `${int(SUM.waits.count)} ×` : "");
  add("Errors", int(errors), SUM.failed_attempts ? plural(SUM.failed_attempts, "failed attempt") : "", errors > 0);
}
const COLUMNS = [
  ["Count", g => int(g.count)], ["Failed", g => g.errors ? int(g.errors) : "", "bad"], ["p50", g => seconds(g.p50)], ["p95", g => seconds(g.p95)],
  ["Longest", g => seconds(g.longest)], ["Total time", null], ["Attempts", g => g.attempts ? int(g.attempts) : ""], ["Cached", g => g.cached ? int(g.cached) : ""], ["Replayed", g => g.replayed ? int(g.replayed) : ""],
  ["Tokens in", g => g.input_tokens ? int(g.input_tokens) : ""], ["from cache", g => g.cached_tokens ? int(g.cached_tokens) : ""], ["Tokens out", g => g.output_tokens ? int(g.output_tokens) : ""], ["Cost", g => g.cost == null ? "" : money(g.cost)],
];
function groupTable(title, groups, kind) {
  if (!groups.length) return [];
  const used = COLUMNS.filter(([, get]) => !get || groups.some(g => get(g) !== ""));
  const made = el("table"), head = el("tr"), tbody = el("tbody");
  head.append(el("th", "", "Name"), ...used.map(c => el("th", "", c[0])));
  for (const cell of head.children) cell.scope = "col";
  const thead = el("thead");
  thead.append(head);
  const most = Math.max(...groups.map(g => g.seconds), 1e-9);
  for (const g of groups) {
    const line = el("tr"), name = el("th");
    name.scope = "row";
    const button = el("button", "link", g.name);
    button.title = "Show these in the timeline";
    button.onclick = () => pick(kind, g.name);
    name.append(button);
    line.append(name);
    for (const [, get, cls] of used) {
      const cell = el("td", cls && get(g) ? cls : "", get ? get(g) : seconds(g.seconds));
      if (!get) {
        const share = el("span", "share " + KINDS[kind] + (kind === WAIT && WAITS.includes(g.name) ? " " + g.name : "")), fillBar = el("i");
        share.setAttribute("aria-hidden", "true");
        fillBar.style.width = g.seconds / most * 100 + "%";
        share.append(fillBar);
        cell.append(share);
      }
      line.append(cell);
    }
    tbody.append(line);
  }
  made.append(thead, tbody);
  const wrap = el("div", "wrap");
  wrap.append(made);
  return [el("h2", "", title), wrap];
}
function summary() {
  const box = $("summary");
  box.append(...groupTable("Models", SUM.by_model, MODEL), ...groupTable("Tools", SUM.by_tool, TOOL), ...groupTable("Patterns", SUM.by_pattern, PATTERN),
    ...groupTable("Steps", SUM.by_step, STEP), ...groupTable("Waits", SUM.by_wait, WAIT));
  const errors = Object.entries(SUM.errors);
  if (errors.length) {
    const made = el("table"), tbody = el("tbody");
    for (const [code, count] of errors) {
      const line = el("tr"), name = el("th"), button = el("button", "link", code);
      name.scope = "row";
      button.onclick = () => { show("timeline"); $("search").value = state.query = code; state.errors = true; sync(); refilter(); };
      name.append(button);
      line.append(name, el("td", "bad", int(count)));
      tbody.append(line);
    }
    made.append(tbody);
    const wrap = el("div", "wrap");
    wrap.append(made);
    box.append(el("h2", "", "Errors by code"), wrap);
  }
  if (!box.children.length) box.append(el("p", "empty", "Nothing to add up: this trace has no calls."));
}
function pick(kind, name) {
  state.name = names.indexOf(name);
  state.kind = kind;
  show("timeline");
  sync();
  refilter();
  table.focus();
}

// --- filters and tabs ----------------------------------------------------------------------
function show(tab) {
  for (const name of ["timeline", "summary"]) {
    const on = name === tab, button = $("tab-" + name);
    $(name).hidden = !on;
    button.setAttribute("aria-selected", on);
    button.tabIndex = on ? 0 : -1;
  }
  if (tab === "timeline") { remeasure(); drawMap(); }
}
function sync() {
  $("errors").setAttribute("aria-pressed", state.errors);
  $("name").value = state.name < 0 ? "" : state.kind + ":" + state.name;
  for (const button of $("kinds").children) button.setAttribute("aria-pressed", !state.hide.has(button.kind));
}
function clear() {
  state.query = $("search").value = "";
  state.errors = false;
  state.name = state.kind = -1;
  state.hide.clear();
  sync();
  refilter();
}
function filters() {
  const seen = new Set(K), select = $("name");
  KINDS.forEach((name, kind) => {
    if (!seen.has(kind)) return;
    const button = el("button");
    button.kind = kind;
    button.setAttribute("aria-pressed", "true");
    button.title = "Show or hide";
    button.append(el("i", "dot " + (kind === WAIT ? "wait permit" : name)), el("span", "", KIND_NAMES[name]));
    button.onclick = () => { if (!state.hide.delete(kind)) state.hide.add(kind); sync(); refilter(); };
    $("kinds").append(button);
  });
  select.append(new Option("All names", ""));
  for (const [label, kind, groups] of [["Models", MODEL, SUM.by_model], ["Tools", TOOL, SUM.by_tool], ["Patterns", PATTERN, SUM.by_pattern], ["Steps", STEP, SUM.by_step], ["Waits", WAIT, SUM.by_wait]]) {
    const known = groups.filter(g => names.includes(g.name));
    if (!known.length) continue;
    const group = document.createElement("optgroup");
    group.label = label;
    for (const g of known) group.append(new Option(`${g.name} (${int(g.count)})`, kind + ":" + names.indexOf(g.name)));
    select.append(group);
  }
  select.onchange = () => {
    const [kind, name] = select.value ? select.value.split(":").map(Number) : [-1, -1];
    state.kind = kind; state.name = name;
    refilter();
  };
  $("errors").onclick = () => { state.errors = !state.errors; sync(); refilter(); };
  let timer = 0;
  $("search").oninput = event => {
    clearTimeout(timer);
    timer = setTimeout(() => { state.query = event.target.value; table.scrollTop = 0; refilter(); }, 60);
  };
}

// --- light and dark ------------------------------------------------------------------------
const dark = matchMedia("(prefers-color-scheme: dark)");
function theme(name) {
  const before = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = name || (dark.matches ? "dark" : "light");
  cache = {};
  if (before) drawMap();
}
let chosen = null;
theme(chosen);
dark.addEventListener("change", () => theme(chosen));
function swap() { chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; theme(chosen); }

// --- keys ---------------------------------------------------------------------------------
const KEYS = [
  ["↑ ↓", "one row up or down; also j and k"], ["← →", "close and open; to the parent, to the first child"], ["Enter", "details of the row"], ["Esc", "close details, then clear search and filters"],
  ["/", "search; Enter and Shift Enter go from hit to hit"], ["n N", "next and previous error"], ["e", "only what failed"], ["+ - 0", "zoom in, out, all of it"],
  ["f", "zoom to the row"], ["[ ]", "earlier, later"], ["Home End", "first and last row; Page Up and Page Down too"], ["t", "light or dark"], ["s", "timeline or summary"], ["?", "these keys"],
];
function openRow(i) {
  if (first[i] >= 0 && !open[i]) toggle(i, 1);
  else if (first[i] >= 0) move(place.get(i) + 1);
}
function closeRow(i) {
  if (first[i] >= 0 && open[i]) toggle(i, 0);
  else for (let p = P[i]; p >= 0; p = P[p]) if (place.has(p)) { move(place.get(p)); break; }
}
function escape() {
  if (!$("detail").hidden) { closeDetail(); table.focus(); }
  else if (keep || state.hide.size) clear();
}
const page = () => Math.max(Math.floor((table.clientHeight - HEAD) / ROW) - 1, 1);
const here = () => place.has(state.selected) ? place.get(state.selected) : -1;
const chosenRow = act => { if (here() >= 0) act(state.selected); else move(0); };
const ACTS = {
  ArrowDown: () => move(here() + 1), ArrowUp: () => move(here() - 1), j: () => move(here() + 1), k: () => move(here() - 1),
  PageDown: () => move(here() + page()), PageUp: () => move(here() - page()), Home: () => move(0), End: () => move(rows.length - 1),
  ArrowRight: () => chosenRow(openRow), ArrowLeft: () => chosenRow(closeRow),
  Enter: () => chosenRow(i => { select(i, true); say("Details of " + nameOf(i)); }), " ": () => chosenRow(i => toggle(i)),
  n: () => go(troubles, 1), N: () => go(troubles, -1), e: () => $("errors").click(),
  "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: fit, f: () => chosenRow(zoomTo), "[": () => pan(-0.3), "]": () => pan(0.3),
};
function onKey(event) {
  const target = event.target, tag = target.tagName;
  if ($("keys").open || event.ctrlKey || event.metaKey || event.altKey) return;
  if (tag === "INPUT") {
    if (event.key === "Escape") { if (target.value) clear(); table.focus(); }
    else if (event.key === "Enter") { event.preventDefault(); state.query = target.value; if (!keep) refilter(); goHit(event.shiftKey ? -1 : 1); }
    else if (event.key === "ArrowDown") { event.preventDefault(); table.focus(); move(0); }
    return;
  }
  if (tag === "SELECT" && event.key !== "Escape") return;
  if (tag === "BUTTON" && (event.key === "Enter" || event.key === " ")) return;
  if (target.getAttribute("role") === "tab" && /^Arrow(Left|Right)$/.test(event.key)) {
    const other = target.id === "tab-timeline" ? "summary" : "timeline";
    show(other);
    $("tab-" + other).focus();
    event.preventDefault();
    return;
  }
  if ($("detail").contains(target) && /^(Arrow|Page|Home|End| )/.test(event.key)) return;
  if (event.key === "Escape") { escape(); return; }
  if (event.key === "?") { $("keys").showModal(); return; }
  if (event.key === "t") { swap(); return; }
  if (event.key === "s") { show($("summary").hidden ? "summary" : "timeline"); return; }
  if (event.key === "/") { event.preventDefault(); show("timeline"); $("search").focus(); $("search").select(); return; }
  const act = $("timeline").hidden ? undefined : ACTS[event.key];
  if (!act) return;
  event.preventDefault();
  if (document.activeElement === document.body) table.focus({preventScroll: true});
  act();
}

// --- pointers -------------------------------------------------------------------------------
const rowAt = event => { const row = event.target.closest(".row"); return row ? row.made : null; };
const inTime = event => event.clientX - table.getBoundingClientRect().left >= left;
const timeX = event => event.clientX - table.getBoundingClientRect().left - left;
function drag(start, target, {moved, done}) {
  target.setPointerCapture(start.pointerId);
  let far = false;
  const onMove = event => {
    if (!far && Math.abs(event.clientX - start.clientX) < 4) return;
    far = true;
    moved(event.clientX - start.clientX, event);
  };
  const onUp = event => {
    target.removeEventListener("pointermove", onMove);
    target.removeEventListener("pointerup", onUp);
    target.removeEventListener("pointercancel", onUp);
    if (done) done(far, event);
  };
  target.addEventListener("pointermove", onMove);
  target.addEventListener("pointerup", onUp);
  target.addEventListener("pointercancel", onUp);
}
function pointers() {
  table.addEventListener("scroll", draw, {passive: true});
  table.addEventListener("pointermove", event => {
    const x = timeX(event);
    const now = event.pointerType === "mouse" && x >= 0 && x <= width ? x : null;
    if (now !== mouse) { mouse = now; if (!scheduled) requestAnimationFrame(() => drawAxis(table.clientHeight - HEAD)); }
  });
  table.addEventListener("pointerleave", () => { mouse = null; draw(); });
  body.addEventListener("pointerdown", event => {
    const made = rowAt(event);
    if (!made || event.button) return;
    const i = made.i;
    if (event.target === made.twist) { event.preventDefault(); select(i); toggle(i); return; }
    if (!inTime(event) || event.pointerType === "touch") { press(i, event); return; }
    const {t0, t1} = state;
    drag(event, body, {
      moved: dx => { const d = -dx / width * (t1 - t0); view(t0 + d, t1 + d); },
      done: far => { if (!far) select(i, true); },
    });
  });
  body.addEventListener("dblclick", event => { const made = rowAt(event); if (made && inTime(event)) zoomTo(made.i); else if (made) toggle(made.i); });
  const axis = $("axis").parentNode;
  axis.addEventListener("pointerdown", event => {
    const from = timeX(event);
    drag(event, axis, {
      moved: (dx, now) => { range = [from, Math.min(Math.max(timeX(now), 0), width)]; drawAxis(table.clientHeight - HEAD); },
      done: far => { if (far && range) view(us(Math.min(...range)), us(Math.max(...range))); range = null; draw(); },
    });
  });
  axis.addEventListener("dblclick", fit);
  table.addEventListener("wheel", event => {
    const x = timeX(event);
    if (x < 0) return;
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
    if (event.ctrlKey || event.metaKey || axis.contains(event.target)) { event.preventDefault(); zoom(Math.exp(Math.max(Math.min(event.deltaY, 200), -200) * 0.004), us(x)); }
    else if (sideways) { event.preventDefault(); pan(sideways / width); }
  }, {passive: false});
  const map = $("map").parentNode;
  map.addEventListener("pointerdown", event => {
    const box = map.getBoundingClientRect(), all = END - START;
    const at = value => START + Math.min(Math.max(value - box.left, 0), box.width) / box.width * all;
    const {t0, t1} = state, from = at(event.clientX), handle = event.target.tagName === "I" ? event.target : null;
    const inside = event.target.id === "brush";
    drag(event, map, {
      moved: (dx, now) => {
        const to = at(now.clientX);
        if (inside) { const d = dx / box.width * all; view(t0 + d, t1 + d); }
        else if (handle) { const fixed = handle.previousElementSibling ? t0 : t1; view(Math.min(fixed, to), Math.max(fixed, to)); }
        else view(Math.min(from, to), Math.max(from, to));
      },
      done: far => { if (!far && !inside && !handle) { const half = (t1 - t0) / 2; view(from - half, from + half); } },
    });
  });
  map.addEventListener("dblclick", fit);
  const split = document.querySelector(".split");
  split.addEventListener("pointerdown", event => {
    const was = split.parentNode.offsetWidth;
    event.preventDefault();
    drag(event, split, {moved: dx => { table.style.setProperty("--name", Math.min(Math.max(was + dx, 120), table.clientWidth - 200) + "px"); remeasure(); }});
  });
}
function press(i) { select(i, true); }

// --- start ------------------------------------------------------------------------------------
function notes() {
  const found = [];
  if (SUM.skipped) found.push(`${plural(SUM.skipped, "line")} could not be read.`);
  if (SUM.cut) found.push("The last line has no end: the program was stopped there, or still writes.");
  if (D.leftOut) found.push(`The last ${plural(D.leftOut, "item")} are not shown, only counted.`);
  const unfinished = L.reduce((sum, value) => sum + (value < 0), 0);
  if (unfinished) found.push(`${plural(unfinished, "item")} ${unfinished === 1 ? "has" : "have"} no end.`);
  $("notes").textContent = found.join(" ");
}
function empty() {
  const box = $("none");
  for (const cls of [".bar", ".map", ".head"]) document.querySelector(cls).hidden = true;
  box.replaceChildren(el("span", "", "This trace has no events yet. A sink writes them:"), el("br"), el("code", "", 'JsonlTraceSink("run.jsonl")'));
  box.hidden = false;
}
function start() {
  for (const [keys, words] of KEYS) {
    const dt = el("dt");
    for (const key of keys.split(" ")) dt.append(el("kbd", "", key));
    $("keylist").append(dt, el("dd", "", words));
  }
  const head = document.querySelector(".head .c-name");
  head.append(el("i", "split"));
  $("when").textContent = SUM.started == null ? "" : `${absolute(0).toLocaleString("en-GB", {dateStyle: "medium", timeStyle: "medium"})} · ${plural(SUM.events, "event")}`;
  $("when").title = SUM.started == null ? "" : absolute(0).toISOString();
  notes();
  figures();
  summary();
  $("tab-timeline").onclick = () => show("timeline");
  $("tab-summary").onclick = () => show("summary");
  $("theme").onclick = swap;
  $("help").onclick = () => $("keys").showModal();
  document.addEventListener("keydown", onKey);
  if (!COUNT) { empty(); return; }
  filters();
  $("in").onclick = () => zoom(0.6);
  $("out").onclick = () => zoom(1 / 0.6);
  $("fit").onclick = fit;
  pointers();
  measure();
  rebuild();
  drawMap();
  new ResizeObserver(() => { remeasure(); drawMap(); }).observe(table);
  addEventListener("beforeprint", () => { printing = true; document.documentElement.dataset.theme = "light"; measure(); render(); drawMap(); });
  addEventListener("afterprint", () => { printing = false; theme(chosen); remeasure(); });
}
start();
document.documentElement.dataset.ready = "1";
})();
