// The round browser. Text that a model wrote reaches the page as text nodes only.
"use strict";
(() => {
  const holder = document.getElementById("rounds-data");
  if (!holder) return;
  const { kinds, terms, rows } = JSON.parse(holder.textContent);
  const byId = (id) => document.getElementById(id);
  const list = byId("list");
  const shown = byId("round");
  const PAGE = 100;
  const FIELDS = { kind: "f-kind", arm: "f-arm", seed: "f-seed", step: "f-step" };
  const READ = { kind: "k", arm: "a", seed: "s", step: "t" };
  let state = { kind: "", arm: "", seed: "", step: "", q: "", cut: "", id: "" };
  let matching = [];
  let at = 0;

  const make = (tag, name, text) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const idOf = (row) => `${row.a}.${row.s}.${row.t}.${row.n}`;
  const cutOff = (row) => Boolean(row.d[7] || (row.c && row.c[7]));
  const haystack = (row) =>
    [row.q, row.g, row.d[4], row.d[3], row.w || "", row.c ? row.c[4] : "", row.c ? row.c[3] : ""]
      .join("\n").toLowerCase();

  // Filters

  const option = (value, text) => {
    const element = make("option", "", text);
    element.value = value;
    return element;
  };
  const fill = (name, label, texts) => {
    const select = byId(FIELDS[name]);
    const values = [...new Set(rows.map((row) => row[READ[name]]))];
    if (typeof values[0] === "number") values.sort((x, y) => x - y);
    const order = texts ? Object.keys(texts).filter((key) => values.includes(key)) : values;
    select.append(option("", label), ...order.map((v) => option(String(v), texts ? texts[v] : String(v))));
    select.addEventListener("change", () => { state[name] = select.value; refresh(); });
  };

  const matches = (row) =>
    Object.keys(FIELDS).every((name) => !state[name] || String(row[READ[name]]) === state[name]) &&
    (!state.cut || cutOff(row)) &&
    (!state.q || haystack(row).includes(state.q.toLowerCase()));

  const refresh = (id) => {
    matching = rows.filter(matches);
    const place = matching.findIndex((row) => idOf(row) === id);
    at = place < 0 ? 0 : place;
    show();
  };

  // The address

  const toHash = () => {
    const words = Object.entries(state).filter(([, value]) => value);
    const text = words.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");
    history.replaceState(null, "", `#rounds?${text}`);
  };
  const fromHash = () => {
    const hash = location.hash;
    if (!hash.startsWith("#rounds?")) return false;
    const words = new URLSearchParams(hash.slice("#rounds?".length));
    for (const key of Object.keys(state)) state[key] = words.get(key) || "";
    for (const [name, id] of Object.entries(FIELDS)) {
      byId(id).value = state[name];
      if (byId(id).value !== state[name]) { state[name] = ""; byId(id).value = ""; }
    }
    byId("f-text").value = state.q;
    byId("f-cut").checked = Boolean(state.cut);
    return true;
  };

  // The list

  const drawList = () => {
    const start = Math.floor(at / PAGE) * PAGE;
    const part = matching.slice(start, start + PAGE);
    const items = part.map((row, index) => {
      const item = make("div");
      item.setAttribute("role", "option");
      item.id = `o-${start + index}`;
      item.setAttribute("aria-selected", String(start + index === at));
      item.setAttribute("aria-posinset", String(start + index + 1));
      item.setAttribute("aria-setsize", String(matching.length));
      item.append(make("span", "", `${row.a}, seed ${row.s}, step ${row.t} · ${kinds[row.k].split(":")[0]}`));
      item.append(make("span", "of", row.q.slice(0, 90)));
      item.addEventListener("click", () => { at = start + index; show(true); });
      return item;
    });
    if (matching.length > PAGE) {
      const more = make("div", "more", `${start + 1} to ${start + part.length} of ${matching.length}; go on with next`);
      more.setAttribute("role", "presentation");
      items.push(more);
    }
    list.replaceChildren(...items);
    if (matching.length) list.setAttribute("aria-activedescendant", `o-${at}`);
    else list.removeAttribute("aria-activedescendant");
    const chosen = byId(`o-${at}`);
    if (chosen) {
      const top = chosen.offsetTop - list.offsetTop;
      if (top < list.scrollTop) list.scrollTop = top;
      else if (top + chosen.offsetHeight > list.scrollTop + list.clientHeight)
        list.scrollTop = top + chosen.offsetHeight - list.clientHeight;
    }
  };

  // One round

  const marked = (parent, text) => {
    const query = state.q.toLowerCase();
    const lower = text.toLowerCase();
    // Lower case can be longer than what it is of: positions would not agree.
    if (!query || lower.length !== text.length) { parent.append(text); return; }
    let from = 0;
    for (let place = lower.indexOf(query); place >= 0; place = lower.indexOf(query, from)) {
      parent.append(text.slice(from, place), make("mark", "", text.slice(place, place + query.length)));
      from = place + query.length;
    }
    parent.append(text.slice(from));
  };
  const textBlock = (text) => {
    const block = make("div", "text");
    block.tabIndex = 0;
    for (const part of text.split(/(<\/?(?:think|summary|answer)>)/)) {
      if (/^<\/?(?:think|summary|answer)>$/.test(part)) block.append(make("span", "tag", part));
      else marked(block, part);
    }
    return block;
  };
  const number = (value) => {
    const text = (Math.round(value * 1000) / 1000).toString().replace("-", "−");
    return value > 0 ? `+${text}` : text === "−0" ? "0" : text;
  };
  const termTable = (rollout) => {
    if (!rollout[8]) return make("p", "empty", "No reward: unscored.");
    const table = make("table", "terms");
    table.setAttribute("aria-label", "Reward terms");
    const body = make("tbody");
    const line = (name, value, total) => {
      const row = make("tr", total ? "total" : "");
      const head = make("th", "", name);
      head.scope = "row";
      row.append(head, make("td", "num", number(value)));
      body.append(row);
    };
    rollout[8].forEach((value, index) => {
      if (value || index === 0 || terms[index] === "format") line(terms[index], value, false);
    });
    line("reward", rollout[8].reduce((x, y) => x + y, 0), true);
    line("advantage", rollout[9], false);
    table.append(body);
    return table;
  };
  const stage = (name, rollout) => {
    const part = make("section", `stage ${rollout[2]}`);
    part.append(make("h4", "", name));
    part.append(make("p", "by", `adapter ${rollout[0]} after ${rollout[1]} steps · ${rollout[5]} tokens, ${rollout[6]} read`));
    const badges = make("p", "badges");
    badges.append(make("span", `badge ${rollout[2]}`, rollout[2]));
    if (rollout[3]) badges.append(make("span", "badge", rollout[3]));
    if (rollout[7]) badges.append(make("span", "badge wrong", "truncated"));
    part.append(badges, textBlock(rollout[4]), termTable(rollout));
    return part;
  };
  const EXCHANGES = {
    paired: "the summary of this draft",
    hidden: "nothing: the challenger did not see a summary",
    shuffled: "the summary of a draft of another problem",
    filler: "a fixed text of the summary's length",
  };
  const passedOn = (row) => {
    const part = make("section", "stage");
    part.append(make("h4", "", "Summary passed on"));
    part.append(make("p", "by", `shown: ${EXCHANGES[row.x] || row.x}`));
    if (row.w !== null && row.w !== undefined) part.append(textBlock(row.w));
    else if (row.x !== "hidden") part.append(make("p", "empty", "The draft left no usable summary; the challenger was told so."));
    if (row.x !== "paired" && row.d[10] !== null) {
      part.append(make("p", "by", "the draft's own summary, not shown:"), textBlock(row.d[10]));
    }
    if (row.r !== undefined) part.append(make("p", "by", `Its credit is against rollout ${row.r} of this step.`));
    return part;
  };
  const drawRound = () => {
    const row = matching[at];
    if (!row) {
      shown.replaceChildren(make("p", "empty", "No round matches. Clear a filter."));
      return;
    }
    const question = make("p", "question");
    question.append(make("b", "", "Problem: "));
    marked(question, row.q);
    question.append(make("b", "", "   Gold: "));
    marked(question, row.g);
    const stages = make("div", row.c ? "stages" : "stages single");
    stages.append(stage("Draft", row.d));
    if (row.c) stages.append(passedOn(row), stage("Challenge", row.c));
    shown.replaceChildren(
      make("h3", "", `${row.a}, seed ${row.s}, step ${row.t}, rollout ${row.n}: ${kinds[row.k]}`),
      question, stages);
  };

  const show = (moved) => {
    if (matching[at]) state.id = idOf(matching[at]);
    drawList();
    drawRound();
    byId("count").textContent = matching.length
      ? `Round ${at + 1} of ${matching.length.toLocaleString("en")}`
      : "No round matches";
    // What a screen reader says: the place and the round's head, not all of its text.
    const head = shown.querySelector("h3");
    byId("said").textContent = `${byId("count").textContent}${head ? `: ${head.textContent}` : ""}`;
    byId("previous").disabled = at === 0;
    byId("next").disabled = at >= matching.length - 1;
    if (moved !== "first") toHash();
  };
  const move = (by) => {
    const next = Math.min(Math.max(at + by, 0), matching.length - 1);
    if (next !== at && matching.length) { at = next; show(); }
  };

  // Start

  fill("kind", "all kinds", kinds);
  fill("arm", "all arms");
  fill("seed", "all seeds");
  fill("step", "all steps");
  let waiting = 0;
  byId("f-text").addEventListener("input", (event) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { state.q = event.target.value.trim(); refresh(); }, 120);
  });
  byId("f-cut").addEventListener("change", (event) => { state.cut = event.target.checked ? "1" : ""; refresh(); });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("f-clear").addEventListener("click", () => {
    state = { kind: "", arm: "", seed: "", step: "", q: "", cut: "", id: "" };
    byId("filters").reset();
    refresh();
  });
  byId("previous").addEventListener("click", () => move(-1));
  byId("next").addEventListener("click", () => move(1));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const on = event.target;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(on.tagName)) {
      if (event.key === "Escape") on.blur();
      return;
    }
    const inside = byId("browser").contains(on);
    const arrows = inside && !on.classList.contains("text");
    if (event.key === "j" || (arrows && event.key === "ArrowDown")) move(1);
    else if (event.key === "k" || (arrows && event.key === "ArrowUp")) move(-1);
    else if (arrows && on === list && event.key === "Home") move(-matching.length);
    else if (arrows && on === list && event.key === "End") move(matching.length);
    else if (event.key === "/") byId("f-text").focus();
    else return;
    event.preventDefault();
  });
  const open = () => { const id = state.id; matching = rows.filter(matches); at = Math.max(0, matching.findIndex((row) => idOf(row) === id)); show("first"); };
  window.addEventListener("hashchange", () => { if (fromHash()) open(); });
  byId("browser").hidden = false;
  const linked = fromHash();
  if (!linked && rows.some((row) => row.a === "agon")) {
    state.arm = "agon";
    byId("f-arm").value = "agon";
  }
  open();
  if (linked) byId("rounds").scrollIntoView();
})();
