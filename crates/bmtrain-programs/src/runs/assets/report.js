// The charts of a report, of the data that the page holds.
"use strict";
(() => {
  const place = document.getElementById("charts");
  if (!place) return;
  const runs = JSON.parse(document.getElementById("data").textContent);
  const options = { axis: "step", smoothing: 0 };
  const { element } = Charts;
  const bar = element("div", "toolbar");
  runs.forEach((run, slot) => {
    const legend = element("span", "legend");
    legend.append(element("i", `dot s${slot % 8}`), run.name);
    bar.append(legend);
  });
  const grid = element("div", "charts");
  const axes = [["step", "step"], ["tokens", "tokens"], ["seconds", "time"]];
  bar.append(Charts.segments("horizontal axis", axes, options.axis, axis => { options.axis = axis; update(); }));
  bar.append(Charts.slider("smoothing", options.smoothing, value => { options.smoothing = value; update(); }));
  place.append(bar, grid);
  const tags = new Set();
  for (const run of runs) for (const stream of Object.values(run.curves.streams)) Object.keys(stream.series).forEach(tag => tags.add(tag));
  const charts = Charts.order([...tags]).map(tag => {
    const chart = new Charts.Chart(tag, tag === "train/grad_norm" ? "logarithmic" : "");
    grid.append(chart.node);
    return chart;
  });
  const marks = runs.length === 1 ? runs[0].events.filter(event => ["resume", "skip", "spike"].includes(event.kind)) : [];
  function update() {
    for (const chart of charts) {
      const lines = runs.flatMap((run, slot) => Object.values(run.curves.streams)
        .filter(stream => stream.series[chart.tag])
        .map(stream => ({ name: run.name, slot: slot % 8, stream, series: stream.series[chart.tag] })));
      chart.update(lines, { ...options, marks, log: chart.tag === "train/grad_norm" });
    }
  }
  update();
})();
