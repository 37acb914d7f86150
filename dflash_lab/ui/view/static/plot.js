/* Plotly as all our figures use it. */

const CONFIG = {
  displaylogo: false,
  responsive: true,
  modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"],
};

/** Draws a figure in `plot`, as wide as that is; in a hidden tab it has no width, and nothing is drawn.
 *
 * With the same `revision`, what the reader zoomed into or switched off in the legend stays.
 */
export async function drawPlot(Plotly, plot, data, layout, revision) {
  if (!plot.clientWidth) return;
  const own = { autosize: true, width: plot.clientWidth, uirevision: revision };
  await Plotly.react(plot, data, { ...layout, ...own }, CONFIG);
}
