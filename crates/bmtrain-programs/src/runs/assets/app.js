// The page of runs. Whatever runs are called is set as text, never as markup. It asks this server alone.
"use strict";
(() => {
  const { element, number, duration, unit } = Charts;
  const byId = id => document.getElementById(id);
  const token = document.querySelector('meta[name="runs-token"]').content;
  const SLOTS = 8, EVERY = 1500;
  const state = {
    runs: [], byId: new Map(), search: "", states: "all", sort: "updated", tag: "",
    selected: new Map(), axis: "step", smoothing: 0, tab: "curves", onlyOther: true,
    curves: new Map(), details: new Map(), known: "",
  };

  // The address after # keeps what is shown, so that it can be sent and loaded again.
  function remember() {
    const hash = new URLSearchParams();
    for (const id of state.selected.keys()) hash.append("run", id);
    for (const key of ["axis", "tab"]) hash.set(key, state[key]);
    hash.set("smoothing", state.smoothing);
    history.replaceState(null, "", "#" + hash);
  }

  function recall() {
    const hash = new URLSearchParams(location.hash.slice(1));
    if (["step", "tokens", "seconds"].includes(hash.get("axis"))) state.axis = hash.get("axis");
    if (["curves", "system", "settings", "events", "samples"].includes(hash.get("tab"))) state.tab = hash.get("tab");
    const smoothing = Number(hash.get("smoothing"));
    if (smoothing >= 0 && smoothing < 1) state.smoothing = smoothing;
    return hash.getAll("run");
  }

  async function ask(path, options) {
    const response = await fetch(path, options);
    if (!response.ok) throw new Error((await response.text()).trim() || response.statusText);
    return response.json();
  }

  const query = (path, parameters) => path + "?" + new URLSearchParams(parameters);

  // ---- the list

  const rows = new Map();

  function makeRow(id) {
    const row = element("label", "run");
    const box = element("input");
    box.type = "checkbox";
    box.addEventListener("change", () => { toggle(id, box.checked); });
    const parts = {
      box, dot: element("i", "dot"), name: element("span", "name"), loss: element("span", "loss"),
      meta: element("span", "meta"), step: element("span", "step"),
    };
    row.append(box, parts.dot, parts.name, parts.loss, parts.meta, parts.step);
    parts.row = row;
    rows.set(id, parts);
    return parts;
  }

  const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };

  function fillRow(run) {
    const parts = rows.get(run.id) || makeRow(run.id);
    const slot = state.selected.get(run.id);
    set(parts.name, run.name);
    parts.row.title = run.id;
    set(parts.loss, run.loss === null ? "" : number(run.loss));
    set(parts.step, run.steps ? `${run.step}/${run.steps}` : String(run.step));
    if (parts.state !== run.state + run.tags.join()) {
      parts.state = run.state + run.tags.join();
      parts.meta.replaceChildren(element("b", "state " + run.state, run.state));
      if (run.tags.length) parts.meta.append("  " + run.tags.join(" · "));
    }
    parts.box.checked = slot !== undefined;
    parts.box.setAttribute("aria-label", `${run.name}, ${run.state}`);
    parts.dot.className = slot === undefined ? "dot" : "dot s" + slot;
    return parts.row;
  }

  function shownRuns() {
    const terms = state.search.toLowerCase().split(/\s+/).filter(Boolean);
    const found = state.runs.filter(run => {
      if (state.states !== "all" && run.state !== state.states) return false;
      if (state.tag && !run.tags.includes(state.tag)) return false;
      const text = [run.name, run.id, run.state, run.reason, ...run.tags].join("\n").toLowerCase();
      return terms.every(term => text.includes(term));
    });
    const by = {
      updated: (a, b) => b.updated - a.updated,
      name: (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }),
      loss: (a, b) => (a.loss ?? Infinity) - (b.loss ?? Infinity),
    }[state.sort];
    return found.sort((a, b) => by(a, b) || (a.id < b.id ? -1 : 1));
  }

  function renderList() {
    const shown = shownRuns();
    const list = byId("list");
    const nodes = shown.map(fillRow);
    const isSame = nodes.length === list.children.length && nodes.every((node, at) => node === list.children[at]);
    if (!isSame) {
      const focused = document.activeElement;
      list.replaceChildren(...nodes);
      if (list.contains(focused)) focused.focus();
    }
    set(byId("count"), shown.length === state.runs.length ? String(shown.length) : `${shown.length} of ${state.runs.length}`);
    if (!shown.length) list.append(element("p", "run", state.runs.length ? "No run matches." : "There is no run here yet."));
  }

  function renderTags() {
    const tags = [...new Set(state.runs.flatMap(run => run.tags))].sort();
    const key = tags.join("\n") + "\n" + state.tag;
    const place = byId("tags");
    if (place.dataset.key === key) return;
    place.dataset.key = key;
    place.replaceChildren(...tags.map(tag => {
      const button = element("button", "tag", tag);
      button.type = "button";
      button.setAttribute("aria-pressed", String(tag === state.tag));
      button.addEventListener("click", () => { state.tag = state.tag === tag ? "" : tag; renderTags(); renderList(); });
      return button;
    }));
  }

  // ---- what is selected

  function toggle(id, isOn) {
    if (!isOn) state.selected.delete(id);
    else if (!state.selected.has(id)) {
      const used = new Set(state.selected.values());
      const free = [...Array(SLOTS).keys()].find(slot => !used.has(slot));
      state.selected.set(id, free ?? state.selected.size % SLOTS);
    }
    remember();
    renderList();
    load();
  }

  const chosen = () => [...state.selected.keys()].map(id => state.byId.get(id)).filter(Boolean);

  // Curves and details of selected runs that have something new.
  async function load() {
    await Promise.all(chosen().map(async run => {
      const version = `${run.records} ${run.state} ${run.updated}`;
      if (state.details.get(run.id)?.version === version) return;
      const [curves, details] = await Promise.all([ask(query("/api/curves", { id: run.id })), ask(query("/api/run", { id: run.id }))]);
      state.curves.set(run.id, curves);
      state.details.set(run.id, { ...details, version });
    })).catch(report);
    render();
  }

  // A finished run may have ended before its last step: by its epochs, its minutes or its evaluations.
  const steps = run => run.steps && run.state !== "finished" ? `${run.step}/${run.steps}` : String(run.step);

  function cell(text, className) { return element("td", className || "", text); }

  function renderSelected() {
    const body = byId("selected").tBodies[0];
    const bytes = unit("_bytes");
    body.replaceChildren(...chosen().map(run => {
      const row = element("tr");
      const name = cell("", "name");
      name.append(element("i", "dot s" + state.selected.get(run.id)), run.name);
      name.title = run.id;
      const status = element("td");
      status.append(element("b", "state " + run.state, run.state), run.state === "crashed" ? " " + run.reason : "");
      const isOther = ([metric]) => metric !== run.metric;
      const metrics = Object.entries(run.eval?.metrics || {}).sort((a, b) => isOther(a) - isOther(b))
        .map(([metric, value]) => `${metric} ${number(value)}`);
      const evaluation = cell(metrics[0] || "–");
      evaluation.title = metrics.join(", ");
      const actions = cell("", "actions");
      const csv = element("a", "button", "CSV");
      csv.href = query("/api/export", { id: run.id });
      csv.setAttribute("aria-label", "CSV of " + run.name);
      actions.append(csv);
      if (token && run.state !== "running") {
        const remove = element("button", "danger", "Delete");
        remove.type = "button";
        remove.setAttribute("aria-label", "Delete " + run.name);
        remove.addEventListener("click", () => confirmDeletion(run));
        actions.append(remove);
      }
      row.append(name, status, cell(steps(run)), cell(number(run.loss)), evaluation,
        cell(number(run.tokens_per_s)), cell(run.peak_share === null ? "–" : unit("_share")(run.peak_share)),
        cell(run.peak_rss_bytes ? bytes(run.peak_rss_bytes) : "–"), cell(duration(run.seconds)), actions);
      return row;
    }));
  }

  const charts = new Map();

  function renderCharts(place, wanted) {
    const runs = chosen().filter(run => state.curves.has(run.id));
    const tags = new Set();
    for (const run of runs) {
      for (const stream of Object.values(state.curves.get(run.id).streams)) Object.keys(stream.series).filter(wanted).forEach(tag => tags.add(tag));
    }
    const order = Charts.order([...tags]);
    const nodes = order.map(tag => {
      if (!charts.has(tag)) charts.set(tag, new Charts.Chart(tag, tag === "train/grad_norm" ? "logarithmic" : ""));
      return charts.get(tag).node;
    });
    const isSame = nodes.length === place.children.length && nodes.every((node, at) => node === place.children[at]);
    if (!isSame) place.replaceChildren(...nodes);
    const marks = runs.length === 1 ? state.details.get(runs[0].id).events.filter(event => ["resume", "skip", "spike"].includes(event.kind)) : [];
    for (const tag of order) {
      const lines = runs.flatMap(run => Object.values(state.curves.get(run.id).streams)
        .filter(stream => stream.series[tag])
        .map(stream => ({ name: run.name, slot: state.selected.get(run.id), stream, series: stream.series[tag] })));
      charts.get(tag).update(lines, { axis: state.axis, smoothing: state.smoothing, log: tag === "train/grad_norm", marks });
    }
  }

  function renderPhases() {
    const place = byId("phases");
    place.replaceChildren();
    for (const run of chosen()) {
      const details = state.details.get(run.id);
      const step = details?.phases.step;
      if (!step) continue;
      const parts = Object.entries(details.phases).filter(([name]) => !["step", "save"].includes(name));
      const within = parts.reduce((sum, [, seconds]) => sum + seconds, 0);
      parts.push(["other in steps", Math.max(0, step - within)], ["saving", details.phases.save || 0], ["evaluation", details.eval_seconds]);
      const whole = Math.max(details.seconds, parts.reduce((sum, [, seconds]) => sum + seconds, 0));
      const keys = element("div", "keys");
      const NS = "http://www.w3.org/2000/svg";
      const bar = document.createElementNS(NS, "svg");
      bar.setAttribute("class", "bar");
      bar.setAttribute("viewBox", "0 0 100 4");
      bar.setAttribute("preserveAspectRatio", "none");
      let from = 0;
      parts.filter(([, seconds]) => seconds > 0).forEach(([name, seconds], at) => {
        const width = 100 * seconds / whole;
        const rect = document.createElementNS(NS, "rect");
        for (const [key, value] of Object.entries({ class: "s" + at % SLOTS, x: from, width, height: 4 })) rect.setAttribute(key, value);
        bar.append(rect);
        from += width;
        const legend = element("span");
        legend.append(element("i", "dot s" + at % SLOTS), ` ${name} ${duration(seconds)}, ${width.toFixed(1)} %`);
        keys.append(legend);
      });
      place.append(element("h2", "", `Where the time of ${run.name} went`), bar, keys);
    }
  }

  function renderSettings() {
    const runs = chosen().filter(run => state.details.has(run.id));
    const place = byId("settings");
    const settings = runs.map(run => state.details.get(run.id).settings);
    const keys = [...new Set(settings.flatMap(Object.keys))].sort();
    const isOther = key => settings.some(values => values[key] !== settings[0][key]);
    const table = element("table");
    const head = element("tr");
    head.append(element("th", "", "setting"), ...runs.map(run => element("th", "", run.name)));
    table.createTHead().append(head);
    const body = table.createTBody();
    const shown = keys.filter(key => runs.length < 2 || !state.onlyOther || isOther(key));
    for (const key of shown) {
      const row = element("tr", runs.length > 1 && isOther(key) ? "other" : "");
      row.append(cell(key, "mono"), ...settings.map(values => cell(values[key] ?? "–", "mono")));
      body.append(row);
    }
    const label = element("label");
    const box = element("input");
    box.type = "checkbox";
    box.checked = state.onlyOther;
    box.addEventListener("change", () => { state.onlyOther = box.checked; renderSettings(); });
    label.append(box, "only settings that differ");
    const scroll = element("div", "scroll");
    scroll.append(table);
    place.replaceChildren(...(runs.length > 1 ? [label] : []), scroll);
    if (!shown.length) place.append(element("p", "soft", keys.length ? "All settings are the same." : "There is no readable recipe.toml."));
  }

  function renderEvents() {
    const place = byId("events");
    place.replaceChildren();
    for (const run of chosen()) {
      const details = state.details.get(run.id);
      if (!details) continue;
      const table = element("table");
      const head = element("tr");
      head.append(...["event", "step", "after", ""].map(name => element("th", "", name)));
      table.createTHead().append(head);
      const body = table.createTBody();
      for (const event of details.events) {
        const row = element("tr");
        row.append(cell(event.kind), cell(String(event.step)), cell(duration(event.seconds)), cell(event.text));
        body.append(row);
      }
      place.append(element("h2", "", run.name), table);
      if (details.more_events) place.append(element("p", "soft", `${details.more_events} later events are left out.`));
    }
  }

  function renderSamples() {
    const place = byId("samples");
    place.replaceChildren();
    for (const run of chosen()) {
      const details = state.details.get(run.id);
      if (!details) continue;
      place.append(element("h2", "", run.name));
      if (!details.samples.length) { place.append(element("p", "soft", "The run has no sample texts: log.samples is not set.")); continue; }
      const table = element("table");
      const head = element("tr");
      head.append(...["step", "prompt", "text"].map(name => element("th", "", name)));
      table.createTHead().append(head);
      const body = table.createTBody();
      for (const sample of details.samples) {
        const row = element("tr");
        row.append(cell(String(sample.step)), cell(sample.prompt), cell(sample.text));
        body.append(row);
      }
      place.append(table);
    }
  }

  function render() {
    const isEmpty = !chosen().length;
    byId("empty").hidden = !isEmpty;
    byId("view").hidden = isEmpty;
    if (isEmpty) return;
    for (const tab of ["curves", "system", "settings", "events", "samples"]) byId(tab).hidden = tab !== state.tab;
    byId("phases").hidden = state.tab !== "system";
    renderSelected();
    if (state.tab === "curves") renderCharts(byId("curves"), tag => !tag.startsWith("time/"));
    if (state.tab === "system") { renderCharts(byId("system"), tag => tag.startsWith("time/")); renderPhases(); }
    if (state.tab === "settings") renderSettings();
    if (state.tab === "events") renderEvents();
    if (state.tab === "samples") renderSamples();
  }

  function makeBar() {
    const bar = byId("bar");
    const tabs = [["curves", "Curves"], ["system", "System"], ["settings", "Settings"], ["events", "Events"], ["samples", "Samples"]];
    const axes = [["step", "step"], ["tokens", "tokens"], ["seconds", "time"]];
    const report = element("button", "push", "Report");
    report.type = "button";
    report.addEventListener("click", () => {
      window.open("/api/report?" + chosen().map(run => new URLSearchParams({ id: run.id })).join("&"), "_blank", "noopener");
    });
    bar.append(
      Charts.segments("part", tabs, state.tab, tab => { state.tab = tab; remember(); render(); }),
      Charts.segments("horizontal axis", axes, state.axis, axis => { state.axis = axis; remember(); render(); }),
      Charts.slider("smoothing", state.smoothing, value => { state.smoothing = value; remember(); render(); }),
      report,
    );
    const states = [["all", "all"], ["running", "running"], ["finished", "finished"], ["stopped", "stopped"], ["crashed", "crashed"]];
    byId("states").append(Charts.segments("state", states, state.states, value => { state.states = value; renderList(); }));
  }

  // ---- deletion

  let doomed = null;

  function confirmDeletion(run) {
    doomed = run;
    set(byId("confirm-name"), `${run.name} in ${run.id}`);
    set(byId("confirm-error"), "");
    byId("confirm").showModal();
    byId("confirm-no").focus();
  }

  async function deleteDoomed() {
    try {
      await ask(query("/api/delete", { id: doomed.id }), { method: "POST", headers: { "X-Runs-Token": token } });
      state.selected.delete(doomed.id);
      byId("confirm").close();
      remember();
      await look();
      load();
    } catch (error) {
      set(byId("confirm-error"), error.message);
    }
  }

  // ---- following

  function report(error) {
    set(byId("live"), "Not connected: " + error.message);
  }

  async function look() {
    const response = await fetch("/api/runs");
    if (!response.ok) throw new Error((await response.text()).trim());
    const tag = response.headers.get("ETag");
    if (tag === state.known) { showLive(); return; }
    state.known = tag;
    const { root, runs } = await response.json();
    state.runs = runs;
    state.byId = new Map(runs.map(run => [run.id, run]));
    set(byId("root"), root);
    byId("root").title = root;
    renderTags();
    renderList();
    showLive();
  }

  function showLive() {
    const running = state.runs.filter(run => run.state === "running").length;
    set(byId("live"), running ? `${running} running, followed live` : "No run in progress");
  }

  async function follow() {
    if (!document.hidden) {
      const known = state.known;
      try { await look(); } catch (error) { report(error); }
      if (state.known !== known) await load();
    }
    setTimeout(follow, EVERY);
  }

  byId("search").addEventListener("input", event => { state.search = event.target.value; renderList(); });
  byId("sort").addEventListener("change", event => { state.sort = event.target.value; renderList(); });
  byId("confirm-no").addEventListener("click", () => byId("confirm").close());
  byId("confirm-yes").addEventListener("click", deleteDoomed);
  document.addEventListener("keydown", event => {
    if (event.key === "/" && !["INPUT", "SELECT"].includes(document.activeElement.tagName)) { event.preventDefault(); byId("search").focus(); }
  });

  (async () => {
    const asked = recall();
    makeBar();
    try { await look(); } catch (error) { report(error); }
    const begin = asked.length ? asked : shownRuns().slice(0, 3).map(run => run.id);
    for (const id of begin) if (state.byId.has(id)) state.selected.set(id, state.selected.size % SLOTS);
    remember();
    renderList();
    await load();
    document.documentElement.dataset.ready = "true";
    setTimeout(follow, EVERY);
  })();
})();
