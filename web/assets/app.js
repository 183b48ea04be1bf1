// What the page does beyond htmx: it says whether it is live, and draws the chart of the
// last hour larger than the server does. Without it all but the chart is still there.
"use strict";
(() => {
  const state = document.getElementById("state");
  const say = (live) => {
    if (!state) return;
    state.textContent = live ? state.dataset.live : state.dataset.lost;
    state.classList.toggle("lost", !live);
  };
  document.addEventListener("htmx:sse:after:message", () => { say(true); draw(); });
  document.addEventListener("htmx:sse:error", () => say(false));

  const box = document.getElementById("plot");
  let plot = null;
  // A canvas takes no light-dark(): the browser resolves the colour of an element instead.
  const colour = (name) => {
    box.style.color = `var(${name})`;
    const resolved = getComputedStyle(box).color;
    box.style.color = "";
    return resolved;
  };

  // values turns the server's points into what uPlot takes: seconds, and a column for each line. After a time in which
  // nobody looked the lines begin anew.
  const values = (points) => {
    const rows = points.flatMap((p, i) => (i && p[0] - points[i - 1][0] > 90 ? [[p[0] - 1, null, null, null], p] : [p]));
    return [0, 1, 2, 3].map((column) => rows.map((row) => row[column]));
  };

  // A mark at each whole second or number at least: no label twice.
  const times = [5, 10, 15, 30].concat([1, 2, 5, 10, 15, 30].map((n) => n * 60));
  const whole = [0, 1, 2, 3, 4, 5, 6].flatMap((zeros) => [1, 2, 5].map((n) => n * 10 ** zeros));

  // The chart's times are UTC, as all times on the page are.
  const clock = (seconds, digits) => new Date(seconds * 1000).toISOString().slice(11, 11 + digits);

  const draw = () => {
    const from = document.getElementById("chart-data");
    if (!box || !from) return;
    const data = JSON.parse(from.dataset.chart);
    if (!data || data.length < 2) return;
    if (plot) {
      plot.setData(values(data));
      return;
    }
    box.hidden = false;
    box.classList.add("still");
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--edge"), width: 1 }, ticks: { show: false } };
    plot = new uPlot({
      width: box.clientWidth || 600, height: 160,
      // Without a pointer over the chart the legend has names only.
      hooks: { setCursor: [(chart) => box.classList.toggle("still", chart.cursor.idx == null)] },
      scales: { x: { range: (_, min, max) => [Math.min(min, max - 10), max] }, y: { range: (_, min, max) => [0, Math.max(1, max)] } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      axes: [{ ...axis, incrs: times, space: 64, values: (_, marks, axis, space, step) => marks.map((t) => clock(t, step < 60 ? 8 : 5)) }, { ...axis, incrs: whole }],
      series: [{ label: "Time (UTC)", value: (_, t) => (t == null ? "--" : clock(t, 8)) }, ...["held", "waiting", "parked"].map((name) => ({ label: name, stroke: colour("--" + name), width: 1.5, spanGaps: false }))],
    }, values(data), box);
  };

  const redraw = () => {
    if (!plot) return;
    plot.destroy();
    plot = null;
    draw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 200);
  });
  draw();
})();
