// The replay page. Its words are in page_words.js, put before this. All it knows is in #data, made by page.py; what each view may see was decided there, by the engine's
// audiences. Text is only ever set as text, never as markup.
(() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const R = D.replay, E = D.events, P = D.phases, N = R.seats.length;
  const $ = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const COLOUR = { werewolf: "var(--wolf)", wolf: "var(--wolf)", seer: "var(--gold)", witch: "var(--violet)", hunter: "var(--green)", guard: "var(--good)", idiot: "var(--amber)", villager: "var(--slate)", good: "var(--good)" };
  const FIXED = { werewolf: "#c5342b", wolf: "#c5342b", seer: "#b58105", witch: "#7d4fc0", hunter: "#23835a", guard: "#2f74c0", idiot: "#b45f06", villager: "#64748b", good: "#2f74c0" };
  const GLYPH = {
    werewolf: "M-13-14L-6-5H6L13-14 13 3 5 9 0 15-5 9-13 3Z", wolf: "M-13-14L-6-5H6L13-14 13 3 5 9 0 15-5 9-13 3Z",
    seer: "M-16 0C-9-11 9-11 16 0 9 11-9 11-16 0ZM0-5A5 5 0 1 0 0 5 5 5 0 1 0 0-5Z",
    witch: "M-4-14H4V-4L12 10Q13 14 8 14H-8Q-13 14-12 10L-4-4Z",
    hunter: "M-1.5-15H1.5V-9A9 9 0 0 1 9-1.5H15V1.5H9A9 9 0 0 1 1.5 9V15H-1.5V9A9 9 0 0 1-9 1.5H-15V-1.5H-9A9 9 0 0 1-1.5-9ZM0-4A4 4 0 1 0 0 4 4 4 0 1 0 0-4Z",
    guard: "M0-15L12-11V-1Q12 9 0 15-12 9-12-1V-11Z", idiot: "M0-15A15 15 0 1 0 .1-15ZM-6-6A2.5 2.5 0 1 0-5.9-6ZM6-6A2.5 2.5 0 1 0 6.1-6ZM-8 3Q0 13 8 3Z",
    villager: "M0-14L15-1H10V13H3V4H-3V13H-10V-1H-15Z", good: "M-12 1L-8-4-3 2 8-10 12-6-3 11Z",
  };
  const TONE = { wolf: "var(--s-red)", good: "var(--s-blue)", plain: "var(--s-line)" };
  const MOON = "M11 1A7.5 7.5 0 1 0 15 11 6.5 6.5 0 0 1 11 1Z";
  const SUN = "M8 4.4A3.6 3.6 0 1 0 8 11.6 3.6 3.6 0 1 0 8 4.4ZM7.2 0h1.6v2.6H7.2zM7.2 13.4h1.6V16H7.2zM0 7.2h2.6v1.6H0zM13.4 7.2H16v1.6h-2.6zM2 3.1 3.1 2 5 3.9 3.9 5zM11 12.1 12.1 11 14 12.9 12.9 14zM12.9 2 14 3.1 12.1 5 11 3.9zM3.9 11 5 12.1 3.1 14 2 12.9z";

  const wanted = new URLSearchParams(location.hash.slice(1));
  const S = { at: E.length - 1, view: D.view, lang: D.lang, theme: "auto", colour: "prob", timer: 0 };
  if (wanted.has("e")) S.at = Math.min(E.length - 1, Math.max(0, parseInt(wanted.get("e"), 10) || 0));
  if (D.views[wanted.get("view")]) S.view = wanted.get("view");
  if (UI[wanted.get("lang")]) S.lang = wanted.get("lang");
  if (["auto", "light", "dark"].includes(wanted.get("theme"))) S.theme = wanted.get("theme");
  if (["prob", "adv", "off"].includes(wanted.get("colour"))) S.colour = wanted.get("colour");

  const w = (key) => UI[S.lang][key];
  const words = () => D.words[S.lang];
  const seatWord = (s) => (s === null || s === undefined ? w("nobody") : S.lang === "en" ? `Player${s + 1}` : `${s + 1}号`);
  const roleWord = (r) => words().roles[r] || (r === "wolf" ? w("isWolf") : r === "good" ? w("isGood") : w("unknown"));
  const number = (x, digits = 2) => (x === null || x === undefined ? "–" : (x > 0 ? "+" : "") + x.toFixed(digits).replace("-", "−"));

  function h(tag, attrs, ...children) {
    const svg = ["svg", "g", "path", "circle", "ellipse", "text", "line", "rect", "marker", "defs", "title", "polyline"].includes(tag);
    const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [k, v] of Object.entries(attrs || {})) {
      if (v === null || v === undefined || v === false) continue;
      if (k === "style") for (const [p, x] of Object.entries(v)) node.style.setProperty(p, x);
      else if (k.startsWith("on")) node.addEventListener(k.slice(2), v);
      else node.setAttribute(k, v === true ? "" : v);
    }
    node.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
    return node;
  }
  const icon = (d, size = 13) => h("svg", { viewBox: "0 0 16 16", width: size, height: size, fill: "currentColor", "aria-hidden": "true" }, h("path", { d }));

  // ── what a view knows at an event ──────────────────────────────────────────────────────────────────────────────
  const eyes = () => new Set(D.views[S.view].eyes);
  const visible = () => new Set(D.views[S.view].events);
  function known(at = S.at) {
    const roles = {};
    for (const [event, seat, role] of D.views[S.view].known) if (event <= at && !(seat in roles)) roles[seat] = role;
    return roles;
  }
  function fallen(at = S.at) {
    const gone = {};
    for (let i = 0; i <= at; i++) for (const seat of E[i].falls) gone[seat] = { how: E[i].kind === "deaths" ? "night" : E[i].kind, day: E[i].day };
    return gone;
  }
  const fellWords = (f) => (S.lang === "en" ? `${w("fell")[f.how]} ${f.day}` : f.how === "night" ? `第${f.day}夜` : `${w("fell")[f.how]}${f.day}天`);
  const phaseOf = (at) => P.find((p) => at >= p.start && at < p.end) || P[P.length - 1];
  const phaseWord = (p) => (S.lang === "en" ? `${w(p.kind)} ${p.day}` : `第${p.day}${w(p.kind)}`);

  // ── the table ──────────────────────────────────────────────────────────────────────────────────────────────────
  function place(seat, G) {
    const a = -Math.PI / 2 + (2 * Math.PI * seat) / N;
    return [G.cx + G.rx * Math.cos(a), G.cy + G.ry * Math.sin(a)];
  }
  function drawTable() {
    const box = $("scene"), svg = $("table");
    const small = box.clientWidth < 520;
    const G = small ? { W: 390, H: 448, cx: 195, cy: 208, rx: 148, ry: 168, r: 25, f: 12.5 } : { W: 680, H: 590, cx: 340, cy: 276, rx: 262, ry: 218, r: 33, f: 14.5 };
    svg.setAttribute("viewBox", `0 0 ${G.W} ${G.H}`);
    svg.setAttribute("role", "group");
    const phase = phaseOf(S.at), night = phase.kind === "night", event = E[S.at], seen = visible().has(S.at);
    box.classList.toggle("night", night);
    const roles = known(), gone = fallen(), suspicion = suspicionAt(S.at);
    const ink = "var(--s-ink)";
    const parts = [
      h("defs", {}, ...["wolf", "good", "plain"].map((n) => h("marker", { id: `tip-${n}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto-start-reverse" }, h("path", { d: "M0 0L8 4 0 8Z", fill: TONE[n] })))),
      h("ellipse", { cx: G.cx, cy: G.cy + 8, rx: G.rx * 0.66, ry: G.ry * 0.6, fill: "var(--s-shade)", opacity: 0.5 }),
      h("ellipse", { cx: G.cx, cy: G.cy, rx: G.rx * 0.66, ry: G.ry * 0.6, fill: "var(--s-wood)", stroke: "var(--s-rim)", "stroke-width": 2 }),
    ];
    for (const [from, to, tone] of seen ? arrows(event) : []) parts.push(arrow(G, from, to, tone, roles));
    const halo = { stroke: "var(--s-wood)", "stroke-width": 5, "paint-order": "stroke", "stroke-linejoin": "round" };
    parts.push(
      h("g", { transform: `translate(${G.cx - 13},${G.cy - (small ? 38 : 44)})`, fill: "var(--s-glow)" }, h("path", { d: night ? MOON : SUN, transform: "scale(1.6)" })),
      h("text", { x: G.cx, y: G.cy + 8, "text-anchor": "middle", fill: ink, "font-size": small ? 19 : 23, "font-weight": 600, "font-family": "var(--serif)", ...halo }, phaseWord(phase)),
      h("text", { x: G.cx, y: G.cy + (small ? 27 : 32), "text-anchor": "middle", fill: ink, "font-size": G.f - 0.5, opacity: 0.85, ...halo }, aliveWords(gone)),
    );
    for (let s = 0; s < N; s++) parts.push(seatNode(s, G, { roles, gone, suspicion, event, seen, ink, small }));
    svg.replaceChildren(...parts);
    $("told").textContent = seen ? event.told[S.lang] : w("hidden");
  }
  const aliveWords = (gone) => { const n = N - Object.keys(gone).length; return S.lang === "en" ? `${n} of ${N} alive` : `存活 ${n}/${N}`; };
  function arrows(event) {
    if (event.kind === "votes") return event.votes.filter(([, t]) => t !== null).map(([v, t]) => [v, t, "vote"]);
    if (event.target === null || event.actor === null || event.actor === event.target) return [];
    return { wolf_pick: [[event.actor, event.target, "kill"]], check: [[event.actor, event.target, "check"]], guarded: [[event.actor, event.target, "save"]], witch_saved: [[event.actor, event.target, "save"]], witch_poisoned: [[event.actor, event.target, "poison"]], shot: [[event.actor, event.target, "kill"]] }[event.kind] || [];
  }
  function arrow(G, from, to, tone, roles) {
    const [x1, y1] = place(from, G), [x2, y2] = place(to, G);
    const d = Math.hypot(x2 - x1, y2 - y1) || 1, ux = (x2 - x1) / d, uy = (y2 - y1) / d;
    const ax = x1 + ux * (G.r + 3), ay = y1 + uy * (G.r + 3), bx = x2 - ux * (G.r + 7), by = y2 - uy * (G.r + 7);
    const mx = (ax + bx) / 2 + (G.cx - (ax + bx) / 2) * 0.28, my = (ay + by) / 2 + (G.cy - (ay + by) / 2) * 0.28;
    const wolf = tone === "kill" || (tone === "vote" && (roles[from] === "werewolf" || roles[from] === "wolf"));
    const name = wolf ? "wolf" : tone === "check" || tone === "save" || (tone === "vote" && roles[from]) ? "good" : "plain";
    return h("path", { d: `M${ax} ${ay}Q${mx} ${my} ${bx} ${by}`, fill: "none", stroke: TONE[name], "stroke-width": 2.4, opacity: 0.85, "stroke-linecap": "round", "marker-end": `url(#tip-${name})`, "stroke-dasharray": tone === "check" ? "5 5" : null });
  }
  function seatNode(s, G, c) {
    const [x, y] = place(s, G), role = c.roles[s], out = c.gone[s], seat = R.seats[s];
    const turn = c.seen && (c.event.actor === s || (c.event.actor === null && (c.event.target === s || (c.event.kind !== "votes" && c.event.players.includes(s)))));
    const mine = S.view === String(s + 1);
    const fill = out ? "var(--s-gone)" : role ? FIXED[role] : "var(--s-blank)";
    const label = `${seatWord(s)}, ${roleWord(role)}${out ? `, ${fellWords(out)}` : ""}. ${w("seatHint")}`;
    const node = h("g", { class: "seat", tabindex: 0, role: "button", "aria-label": label, "aria-pressed": String(mine), transform: `translate(${x},${y})`, onclick: () => setView(mine ? "god" : String(s + 1)), onkeydown: (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); e.stopPropagation(); setView(mine ? "god" : String(s + 1)); } } });
    if (turn) node.append(h("circle", { r: G.r + 9, fill: "var(--s-glow)", opacity: 0.3 }));
    node.append(h("circle", { class: "disc", r: G.r, fill, stroke: mine ? "var(--s-ink)" : turn ? "var(--s-ring)" : "var(--s-edge)", "stroke-width": mine || turn ? 3.5 : 3 }));
    const part = c.suspicion[s];
    if (!out && part > 0) {
      const a = Math.min(0.9999, part) * 2 * Math.PI, R2 = G.r + 5;
      node.append(h("path", { d: `M0 ${-R2}A${R2} ${R2} 0 ${a > Math.PI ? 1 : 0} 1 ${R2 * Math.sin(a)} ${-R2 * Math.cos(a)}`, fill: "none", stroke: "var(--s-arc)", "stroke-width": 3.5, "stroke-linecap": "round" }, h("title", {}, `${w("sus")}: ${Math.round(part * 100)}%`)));
    }
    if (GLYPH[role]) node.append(h("path", { d: GLYPH[role], fill: "#fff", "fill-rule": "evenodd", opacity: out ? 0.55 : 0.96, transform: `scale(${G.r / 31})` }));
    else node.append(h("text", { y: 7, "text-anchor": "middle", fill: "#fff", "font-size": 20, "font-weight": 700, opacity: 0.9 }, "?"));
    if (out) node.append(h("path", { d: `M${-G.r * 0.72} ${-G.r * 0.72}L${G.r * 0.72} ${G.r * 0.72}`, stroke: "var(--s-ink)", "stroke-width": 2.5, opacity: 0.75 }));
    node.append(h("circle", { cx: G.r * 0.78, cy: -G.r * 0.78, r: 10.5, fill: "var(--s-ink)" }), h("text", { x: G.r * 0.78, y: -G.r * 0.78 + 4.3, "text-anchor": "middle", "font-size": 12, "font-weight": 700, fill: "var(--s-deep)" }, String(s + 1)));
    node.append(h("text", { y: G.r + G.f + 3, "text-anchor": "middle", "font-size": G.f, "font-weight": 600, fill: c.ink, opacity: out ? 0.65 : 1 }, roleWord(role)));
    const under = out ? fellWords(out) : seat.player === "scripted" ? "" : w("kinds")[seat.player];
    if (under && !(c.small && !out)) node.append(h("text", { y: G.r + 2 * G.f + 4, "text-anchor": "middle", "font-size": G.f - 2, fill: c.ink, opacity: 0.72 }, under));
    return node;
  }

  // ── timeline ───────────────────────────────────────────────────────────────────────────────────────────────────
  function drawTimeline() {
    const seen = visible();
    $("phases").replaceChildren(...P.map((p, i) => {
      const out = [];
      for (let e = p.start; e < p.end; e++) if (seen.has(e)) out.push(...E[e].falls.map((s) => s + 1));
      const share = Math.max(0, Math.min(1, (S.at - p.start + 1) / (p.end - p.start)));
      const current = S.at >= p.start && S.at < p.end;
      const label = `${phaseWord(p)}${out.length ? ` · ${w("died")}: ${out.join(", ")}` : ""}`;
      return h("button", { type: "button", class: `phase ${p.kind}`, "aria-current": String(current), "aria-label": label, title: label, style: { "--n": Math.max(2.5, Math.sqrt(p.end - p.start)) }, onclick: () => go(p.start) },
        h("span", { class: "fill", style: { width: `${share * 100}%` } }),
        h("span", { class: "name" }, icon(p.kind === "night" ? MOON : SUN), h("span", { class: "t" }, phaseWord(p)), h("span", { class: "d" }, String(p.day))),
        h("span", { class: "fell" }, out.length ? `✝ ${out.join(" ")}` : ""));
    }));
    $("slider").max = E.length - 1;
    $("slider").value = S.at;
    $("slider").setAttribute("aria-valuetext", `${phaseWord(phaseOf(S.at))}, ${S.at + 1} / ${E.length}`);
    $("count").textContent = `${S.at + 1} / ${E.length}`;
  }

  // ── the log ────────────────────────────────────────────────────────────────────────────────────────────────────
  let entryOf = new Map();
  const badge = (s, roles) => h("span", { class: "num", style: { "--c": COLOUR[roles[s]] || "var(--slate)" }, "aria-hidden": "true" }, String(s + 1));
  function drawLog() {
    const seen = visible(), mine = eyes(), roles = known(E.length), list = $("entries"), nodes = [];
    entryOf = new Map();
    const byPlace = new Map();
    D.decisions.forEach((d) => { if (mine.has(d.seat) && d.exchanges.length) byPlace.set(d.after, [...(byPlace.get(d.after) || []), d]); });
    for (const p of P) {
      nodes.push(h("h3", {}, icon(p.kind === "night" ? MOON : SUN), phaseWord(p)));
      for (let i = p.start; i < p.end; i++) {
        const thoughts = byPlace.get(i) || [];
        if (!seen.has(i) && !thoughts.length) continue;
        const node = h("div", { class: "entry", "data-event": i });
        if (seen.has(i)) node.append(...told(E[i], i, roles));
        // A decision leads to the event it stands before; a secret vote or a passed night has no event of its own.
        for (const d of thoughts) node.append(...minded(d, roles, !seen.has(i) || E[i].actor !== d.seat));
        entryOf.set(i, node);
        nodes.push(node);
      }
    }
    list.replaceChildren(...nodes);
    mark();
  }
  function told(e, i, roles) {
    const jump = () => go(i);
    if (e.kind === "speech" || e.kind === "last_words") {
      return [h("button", { type: "button", class: "line", onclick: jump }, badge(e.actor, roles), h("span", { class: "who" }, seatWord(e.actor)), h("span", { class: "none" }, e.kind === "speech" ? words().kinds.speak : words().kinds.last_words)),
        h("div", { class: `say${e.words[S.lang] ? "" : " empty"}` }, e.words[S.lang] || w("silent"))];
    }
    const big = ["deaths", "exile", "shot", "game_over", "no_exile"].includes(e.kind);
    const who = e.actor !== null ? e.actor : null;
    return [h("button", { type: "button", class: "line", onclick: jump }, who !== null ? badge(who, roles) : null, h("span", { class: `fact${big ? " big" : ""}` }, e.told[S.lang]))];
  }
  const turns = new Map();
  (function conversations() {
    const talk = {};
    for (const d of D.decisions) for (const x of d.exchanges) {
      const prompt = [...(talk[d.seat] || []).slice(0, x.history), ...x.messages];
      turns.set(x, prompt);
      talk[d.seat] = x.reply ? [...prompt, x.reply] : prompt;
    }
  })();
  function minded(d, roles, named) {
    const out = [];
    for (const x of d.exchanges) {
      const head = [];
      if (named) head.push(h("span", {}, `${seatWord(d.seat)} · ${words().kinds[d.kind] || d.kind}`));
      if (!x.used) head.push(h("span", { class: "bad" }, `${w("unused")}${x.problem ? `: ${x.problem}` : ""}`));
      if (x.private) out.push(h("div", { class: "mind" }, h("div", { class: "tag" }, ...head, h("span", {}, w("mind"))), h("p", {}, x.private)));
      else if (head.length && !x.call) out.push(h("div", { class: "mind" }, h("div", { class: "tag" }, ...head)));
      if (!x.reply) out.push(h("div", { class: "mind" }, h("p", { class: "bad" }, w("toolong"))));
      if (x.call && S.colour !== "off") out.push(tokens(x.call, d.seat, head.length && !x.private ? head.map((n) => n.cloneNode(true)) : []));
      out.push(raw(x));
    }
    return out;
  }
  const most = Math.max(1e-9, ...R.seats.map((s) => Math.abs(s.advantage || 0)));
  // Of a game that was not trained (an evaluation) no token is struck out: there is nothing to tell apart.
  const trainedAtAll = D.decisions.some((d) => d.exchanges.some((x) => x.call && x.call.trained.includes(true)));
  function tint(call, k, adv) {
    if (S.colour === "adv") {
      if (adv === null || !call.trained[k]) return "transparent";
      const a = 0.12 + 0.5 * Math.min(1, Math.abs(adv) / most);
      return adv >= 0 ? `rgb(47 116 192 / ${a})` : `rgb(214 84 20 / ${a})`;
    }
    const x = Math.min(1, -call.logprobs[k] / 4);
    return x < 0.5 ? `rgb(${Math.round(40 + 420 * x)} ${Math.round(160 - 20 * x)} ${Math.round(120 - 200 * x)} / ${0.16 + 0.4 * x})` : `rgb(${Math.round(250 - 60 * (x - 0.5))} ${Math.round(150 - 200 * (x - 0.5))} ${Math.round(20 + 40 * (x - 0.5))} / ${0.36 + 0.4 * (x - 0.5)})`;
  }
  const shown = (text) => text.replace(/\n/g, "↵\n");
  function tokens(call, seat, head) {
    const adv = R.seats[seat].advantage;
    const read = h("div", { class: "read", "aria-live": "polite" });
    const spans = call.texts.map((text, k) => h("span", { class: call.trained[k] || !trainedAtAll ? "" : "off", style: { background: tint(call, k, adv) }, title: facts(call, k, adv) }, shown(text)));
    let sel = -1;
    const choose = (k) => { if (sel >= 0) spans[sel].classList.remove("sel"); sel = Math.max(0, Math.min(spans.length - 1, k)); if (spans[sel]) { spans[sel].classList.add("sel"); read.textContent = `${JSON.stringify(call.texts[sel])}  ${facts(call, sel, adv)}`; } };
    spans.forEach((s, k) => s.addEventListener("click", () => choose(k)));
    const box = h("div", { class: "tokens", tabindex: 0, role: "group", "aria-label": `${w("reply")}: ${call.texts.join("")}`, onkeydown: (e) => { const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key]; if (step) { e.preventDefault(); e.stopPropagation(); choose(sel + step); } } }, ...spans);
    return h("div", { class: "reply" }, h("div", { class: "tag" }, ...head, h("span", {}, `${w("policy")} ${span(call.versions)}`), h("span", {}, `${w("temp")} ${call.temperature}`), adv === null ? null : h("span", {}, `${w("adv")} ${number(adv, 3)}`)), box, read);
  }
  const span = (v) => { const lo = Math.min(...v), hi = Math.max(...v); return v.length ? (lo === hi ? `${lo}` : `${lo}–${hi}`) : "–"; };
  const facts = (call, k, adv) => `${w("p")} ${Math.exp(call.logprobs[k]).toFixed(3)} · ${w("lp")} ${call.logprobs[k].toFixed(3).replace("-", "−")} · ${call.trained[k] ? w("trained") : w("untrained")}${adv !== null && call.trained[k] ? ` · ${w("adv")} ${number(adv, 3)}` : ""}`;
  function raw(x) {
    const body = h("div", {});
    const details = h("details", { class: "raw" }, h("summary", {}, w("prompt")), body);
    details.addEventListener("toggle", () => {
      if (!details.open || body.firstChild) return;
      const all = [...turns.get(x), ...(x.reply ? [x.reply] : [])];
      body.append(...all.map((m) => h("div", { class: "msg" }, h("b", {}, w(m.role) || m.role), m.reasoning_content ? h("pre", {}, `[${w("reasoning")}] ${m.reasoning_content}`) : null, h("pre", {}, typeof m.content === "string" ? m.content : JSON.stringify(m.content)))));
    });
    return details;
  }
  function mark() {
    let current = null;
    for (const [i, node] of entryOf) {
      node.classList.toggle("later", i > S.at);
      node.classList.remove("now");
      node.removeAttribute("aria-current");
      if (i <= S.at) current = node;
    }
    if (!current) return;
    current.classList.add("now");
    current.setAttribute("aria-current", "step");
    const list = $("entries"), top = current.offsetTop - 40;
    if (top < list.scrollTop || current.offsetTop + Math.min(current.offsetHeight, list.clientHeight - 60) > list.scrollTop + list.clientHeight) list.scrollTop = Math.max(0, top - list.clientHeight / 3);
  }
  function drawLegend() {
    const box = $("legend"), joined = D.decisions.some((d) => d.exchanges.some((x) => x.call));
    if (!joined) { box.hidden = !D.decisions.some((d) => d.exchanges.length); box.replaceChildren(w("nojoin")); return; }
    box.hidden = S.colour === "off";
    const prob = S.colour === "prob";
    const bar = h("i", { style: { background: prob ? "linear-gradient(90deg, rgb(40 160 120 / .25), rgb(250 150 20 / .5), rgb(215 50 40 / .65))" : "linear-gradient(90deg, rgb(214 84 20 / .62), transparent, rgb(47 116 192 / .62))" } });
    box.replaceChildren(prob ? w("sure") : w("neg"), bar, prob ? w("surprise") : w("pos"), prob ? "" : R.seats.some((s) => s.advantage !== null) ? "" : `(${w("noadv")})`);
  }

  // ── tables ─────────────────────────────────────────────────────────────────────────────────────────────────────
  const chip = (s, roles) => (s === null || s === undefined ? h("span", { class: "none" }, "–") : h("span", { class: "chip" }, badge(s, roles)));
  function drawVotes() {
    const ballots = R.tables.votes.filter((b) => b.event <= S.at), roles = known(E.length), gone = fallen();
    if (!ballots.length) { $("votes").replaceChildren(h("p", { class: "none" }, w("none"))); return; }
    const heads = ballots.map((b) => h("th", { class: "c", scope: "col" }, `${phaseWord({ kind: "day", day: b.day })}${b.revote ? ` (${w("revote")})` : ""}`));
    const rows = R.seats.map((s) => h("tr", { class: gone[s.seat] ? "dead" : "" }, h("th", { scope: "row" }, h("span", { class: "chip" }, badge(s.seat, roles), seatWord(s.seat))), ...ballots.map((b) => {
      const vote = b.votes.find(([v]) => v === s.seat);
      return h("td", { class: `c${b.event === S.at ? " col-now" : ""}` }, vote === undefined ? "" : chip(vote[1], roles));
    })));
    const top = h("tr", {}, h("th", { scope: "row" }, w("total")), ...ballots.map((b) => {
      const n = {};
      for (const [, t] of b.votes) if (t !== null) n[t] = (n[t] || 0) + 1;
      const high = Math.max(0, ...Object.values(n));
      const who = Object.keys(n).filter((t) => n[t] === high).map((t) => +t + 1);
      return h("td", { class: "c" }, high ? `${who.join(", ")} (${high})` : "–");
    }));
    $("votes").replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, ""), ...heads)), h("tbody", {}, ...rows, top)));
  }
  function drawNights() {
    const seen = visible(), roles = known(E.length), kinds = {};
    E.forEach((e, i) => { if (seen.has(i) && i <= S.at) kinds[`${e.day} ${e.kind}`] = true; });
    const may = (n, kind) => kinds[`${n.day} ${kind}`];
    const guards = R.seats.some((s) => s.role === "guard");
    const dash = () => h("span", { class: "none" }, "·");
    const rows = R.tables.nights.filter((n) => Object.keys(kinds).some((k) => k.startsWith(`${n.day} `))).map((n) => h("tr", {},
      h("th", { scope: "row" }, String(n.day)),
      guards && h("td", {}, may(n, "guarded") ? chip(n.guarded, roles) : dash()),
      h("td", {}, may(n, "wolf_pick") ? h("span", { class: "chip" }, ...n.picks.map(([wolf, t]) => h("span", { class: "chip" }, `${wolf + 1}→`, chip(t, roles)))) : dash()),
      h("td", {}, may(n, "wolf_target") ? chip(n.attacked, roles) : dash()),
      h("td", {}, may(n, "check") ? h("span", { class: "chip" }, chip(n.checked, roles), n.is_wolf ? w("isWolf") : w("isGood")) : dash()),
      h("td", {}, may(n, "witch_saved") ? chip(n.saved, roles) : dash()),
      h("td", {}, may(n, "witch_poisoned") ? chip(n.poisoned, roles) : dash()),
      h("td", {}, may(n, "deaths") ? (n.died.length ? h("span", { class: "chip" }, ...n.died.map((s) => chip(s, roles))) : w("nobody")) : dash())));
    const heads = ["night", ...(guards ? ["guarded"] : []), "wolvesPick", "attacked", "checked", "saved", "poisoned", "died"].map((k) => h("th", { scope: "col" }, w(k)));
    $("nights").replaceChildren(rows.length ? h("table", {}, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...rows)) : h("p", { class: "none" }, w("none")));
  }
  function suspicionAt(at) {
    let shares = new Array(N).fill(0);
    for (const m of R.tables.suspicion) if (m.event <= at) shares = m.shares;
    return shares;
  }
  function drawSuspicion() {
    const roles = known(E.length), gone = fallen(E.length - 1), W = 300, H = 54, X = (e) => (e / Math.max(1, E.length - 1)) * W;
    $("sus").replaceChildren(...R.seats.map((s) => {
      let d = `M0 ${H - 2}`, last = H - 2;
      const out = E.findIndex((e) => e.falls.includes(s.seat));
      for (const m of R.tables.suspicion) {
        if (out >= 0 && m.event > out) break;
        const y = H - 2 - m.shares[s.seat] * (H - 8);
        d += `H${X(m.event)}V${y}`;
        last = y;
      }
      const end = out >= 0 ? X(out) : W;
      d += `H${end}`;
      const c = COLOUR[roles[s.seat]] || "var(--slate)";
      const bands = P.filter((p) => p.kind === "night").map((p) => h("rect", { x: X(p.start), y: 0, width: Math.max(1, X(p.end) - X(p.start)), height: H, fill: "currentColor", opacity: 0.07 }));
      const svg = h("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": `${seatWord(s.seat)}: ${Math.round(suspicionAt(S.at)[s.seat] * 100)}%` }, ...bands,
        h("path", { d: `${d}V${H - 2}H0Z`, style: { fill: c }, opacity: 0.18 }), h("path", { d, fill: "none", style: { stroke: c }, "stroke-width": 2, "vector-effect": "non-scaling-stroke" }),
        h("line", { x1: X(S.at), x2: X(S.at), y1: 0, y2: H, stroke: "currentColor", "stroke-width": 1, "vector-effect": "non-scaling-stroke", opacity: 0.6 }),
        out >= 0 ? h("line", { x1: end, x2: end, y1: last - 6, y2: H, style: { stroke: c }, "stroke-width": 3, "vector-effect": "non-scaling-stroke" }) : null);
      const share = Math.round(suspicionAt(S.at)[s.seat] * 100);
      return h("figure", {}, h("figcaption", {}, h("span", { class: "chip" }, badge(s.seat, roles), seatWord(s.seat), h("span", { class: "none r" }, roles[s.seat] ? roleWord(roles[s.seat]) : "")), h("span", { class: "none" }, gone[s.seat] && out <= S.at ? `✝ ${fellWords(gone[s.seat])}` : `${share}%`)), svg);
    }));
  }
  function drawPlayers() {
    const roles = known(E.length), gone = fallen(E.length - 1), mine = eyes();
    const heads = [["seat"], ["role"], ["by"], ["end"], ["replies", 1], ["meanp", 1], ["reward", 1], ["adv", 1]].map(([k, n]) => h("th", { scope: "col", class: n ? "n" : "" }, w(k)));
    const rows = R.seats.map((s) => {
      const own = D.decisions.filter((d) => d.seat === s.seat).flatMap((d) => d.exchanges);
      const lp = own.flatMap((x) => (x.call ? x.call.logprobs : []));
      const open = mine.has(s.seat);
      const tone = (v) => (v > 0 ? "n pos" : v < 0 ? "n neg" : "n");
      return h("tr", { class: gone[s.seat] ? "dead" : "" }, h("th", { scope: "row" }, h("span", { class: "chip" }, badge(s.seat, roles), seatWord(s.seat))),
        h("td", {}, h("span", { class: "role", style: { "--c": COLOUR[roles[s.seat]] || "inherit" } }, roleWord(roles[s.seat]))),
        h("td", {}, `${w("kinds")[s.player]}${s.model ? ` (${s.model})` : ""}`), h("td", {}, gone[s.seat] ? fellWords(gone[s.seat]) : w("alive")),
        h("td", { class: "n" }, own.length || "–"), h("td", { class: "n" }, open && lp.length ? Math.exp(lp.reduce((a, b) => a + b, 0) / lp.length).toFixed(3) : "–"),
        h("td", { class: "n" }, s.reward === null ? "–" : s.reward.toFixed(2)), h("td", { class: tone(s.advantage || 0) }, number(s.advantage, 3)));
    });
    $("players").replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...rows)));
    $("playersSub").textContent = `${words().results[R.winner]}${S.lang === "en" ? ": " : "："}${words().causes[R.end_cause] || R.end_cause}${S.lang === "en" ? "." : "。"}`;
  }

  // ── the frame ──────────────────────────────────────────────────────────────────────────────────────────────────
  function drawFrame() {
    document.documentElement.lang = S.lang === "zh" ? "zh-CN" : "en";
    document.documentElement.dataset.theme = S.theme;
    document.title = `${w("title")} · ${R.seed}`;
    document.querySelectorAll("[data-w]").forEach((n) => { n.textContent = w(n.dataset.w); });
    $("title").textContent = w("title");
    $("lead").replaceChildren(h("span", { class: `result ${R.winner}` }, words().results[R.winner]), S.lang === "en" ? ` — ${words().causes[R.end_cause] || R.end_cause}, day ${R.days}` : `——${words().causes[R.end_cause] || R.end_cause}，第${R.days}天`);
    const ep = R.episode, pv = R.policy_version, when = new Date(R.created * 1000);
    const items = [["label", ep.label], ["seed", R.seed], ["policy", pv && (pv[0] === pv[1] ? String(pv[0]) : `${pv[0]}–${pv[1]}`)], ["fate", ep.fate], ["step", ep.step === null ? "" : String(ep.step)], ["episode", ep.episode_id], ["recorded", when.toISOString().slice(0, 16).replace("T", " ") + " UTC"]];
    $("facts").replaceChildren(...items.filter(([, v]) => v).map(([k, v]) => h("li", {}, `${w(k)} `, h("b", {}, v))));
    const options = ["god", "public", "wolves", ...R.seats.map((s) => String(s.seat + 1))];
    $("view").replaceChildren(...options.map((v) => h("option", { value: v, selected: v === S.view }, `${w("view")}: ${isNaN(v) ? w(v) : `${seatWord(+v - 1)}${S.view === "god" ? ` (${roleWord(R.seats[+v - 1].role)})` : ""}`}`)));
    $("view").value = S.view;
    $("view").setAttribute("aria-label", w("view"));
    document.querySelectorAll("#lang button").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.lang === S.lang)));
    document.querySelectorAll("#colour button").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.c === S.colour)));
    $("theme").textContent = w("theme")[S.theme];
    for (const id of ["first", "prev", "next", "last"]) $(id).setAttribute("aria-label", w(id));
    $("slider").setAttribute("aria-label", w("slider"));
    $("help").setAttribute("aria-label", w("help"));
    $("entries").setAttribute("aria-label", w("log"));
    for (const id of ["votes", "nights", "players"]) $(id).setAttribute("aria-label", w(id));
    $("keylist").replaceChildren(...w("keylist").flatMap(([k, v]) => [h("dt", {}, k), h("dd", {}, v)]));
    $("foot").textContent = w("foot");
    playing();
  }
  function playing() {
    $("playicon").setAttribute("d", S.timer ? "M3 2h4v12H3zM9 2h4v12H9z" : "M4 2l10 6-10 6z");
    $("play").setAttribute("aria-label", w(S.timer ? "pause" : "play"));
  }
  const drawMoment = () => { drawTimeline(); drawTable(); drawVotes(); drawNights(); drawSuspicion(); drawPlayers(); };
  const drawAll = () => { drawFrame(); drawLegend(); drawMoment(); drawLog(); };
  function go(at) { S.at = Math.max(0, Math.min(E.length - 1, at)); drawMoment(); mark(); }
  function step(by) {
    const seen = visible();
    let at = S.at + by;
    while (at >= 0 && at < E.length && !seen.has(at)) at += by;
    if (at >= 0 && at < E.length) go(at);
    else stop();
  }
  function phaseStep(by) { const i = P.indexOf(phaseOf(S.at)); go(P[Math.max(0, Math.min(P.length - 1, i + by))].start); }
  function setView(view) { if (D.views[view]) { S.view = view; drawAll(); } }
  function stop() { clearInterval(S.timer); S.timer = 0; playing(); }
  function toggle() {
    if (S.timer) return stop();
    if (S.at === E.length - 1) go(0);
    S.timer = setInterval(() => step(1), 1300);
    playing();
  }
  const turn = (list, now) => list[(list.indexOf(now) + 1) % list.length];
  const setColour = (c) => { S.colour = c; drawFrame(); drawLegend(); drawLog(); };
  const setLang = (l) => { S.lang = l; drawAll(); };
  const setTheme = (t) => { S.theme = t; drawFrame(); };
  $("first").onclick = () => go(0);
  $("last").onclick = () => go(E.length - 1);
  $("prev").onclick = () => step(-1);
  $("next").onclick = () => step(1);
  $("play").onclick = toggle;
  $("slider").oninput = (e) => go(+e.target.value);
  $("view").onchange = (e) => setView(e.target.value);
  $("theme").onclick = () => setTheme(turn(["auto", "light", "dark"], S.theme));
  $("help").onclick = () => $("keys").showModal();
  document.querySelectorAll("#lang button").forEach((b) => { b.onclick = () => setLang(b.dataset.lang); });
  document.querySelectorAll("#colour button").forEach((b) => { b.onclick = () => setColour(b.dataset.c); });
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || $("keys").open || ["SELECT", "INPUT", "TEXTAREA"].includes(e.target.tagName)) return;
    const onButton = e.target.closest("button, summary, a, [role=button]");
    if (e.key === " " && onButton) return;
    const act = { ArrowRight: () => step(1), ArrowLeft: () => step(-1), "[": () => phaseStep(-1), "]": () => phaseStep(1), Home: () => go(0), End: () => go(E.length - 1), " ": toggle, g: () => setView("god"), p: () => setView("public"), w: () => setView("wolves"), l: () => setLang(turn(["en", "zh"], S.lang)), t: () => setTheme(turn(["auto", "light", "dark"], S.theme)), c: () => setColour(turn(["prob", "adv", "off"], S.colour)), "?": () => $("keys").showModal() }[e.key];
    if (act) { e.preventDefault(); act(); } else if (/^[1-9]$/.test(e.key)) setView(e.key);
  });
  let width = 0;
  addEventListener("resize", () => { if ($("scene").clientWidth !== width) { width = $("scene").clientWidth; drawTable(); } });
  drawAll();
  window.replayState = () => ({ at: S.at, view: S.view, lang: S.lang, theme: S.theme, colour: S.colour, playing: !!S.timer });
})();
