// Pictures: canvases that show states of chunks, phases of steps and rates. Colours come from the style sheet, so that they follow the theme.

const style = () => getComputedStyle(document.documentElement);
export const colour = (name) => style().getPropertyValue("--" + name).trim();

// Letter of the admin API -> colour. In an rCache's row '.' means that the rank does not hold the chunk.
const INKS = { C: "held", ">": "coming", "<": "going", _: "empty", ".": "resident", g: "arriving", G: "complete", O: "due", A: "updating", "=": "frozen", N: "nvme", "-": "absent" };
// If several chunks share a column, it shows the leftmost of these letters, as `memctl residency` does.
const PRIORITY = "AO><gGN_C.=-";
export const QUIET = ".-_";  // drawn without a letter

export const inkOf = (letter, kind) => (kind === "rcache" && letter === "." ? "absent" : INKS[letter] || "soft");

export function lettersOf(runs) {
  return runs.map(([letter, count]) => letter.repeat(count)).join("");
}

// A drawing context in CSS pixels, sized as the canvas is displayed.
function contextOf(canvas) {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  const wide = Math.max(1, Math.round(width * scale)), high = Math.max(1, Math.round(height * scale));
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

// The number of chunks per column for `count` chunks in `width` pixels.
export const foldOf = (count, width) => Math.max(1, Math.ceil((count * 3) / Math.max(width, 3)));

// The letter of a column's chunks with the highest priority.
function shown(part) {
  for (const letter of PRIORITY) if (part.includes(letter)) return letter;
  return part[0];
}

// One row of a job: a cell per chunk.
export function paintRow(canvas, letters, kind) {
  const { context, width, height } = contextOf(canvas);
  const fold = foldOf(letters.length, width), columns = Math.ceil(letters.length / fold), cell = width / columns, gap = cell >= 8 ? 2 : cell >= 5 ? 1 : 0;
  const colours = new Map();
  const line = colour("line");
  context.font = "700 11px ui-monospace, 'DejaVu Sans Mono', monospace";
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let column = 0; column < columns; ++column) {
    const letter = shown(letters.slice(column * fold, (column + 1) * fold)), name = inkOf(letter, kind);
    const x = Math.round(column * cell), wide = Math.round((column + 1) * cell) - x - gap;  // whole pixels: no seams
    if (!colours.has(name)) colours.set(name, colour(name));
    context.fillStyle = colours.get(name);
    context.fillRect(x, 0, wide, height);
    if (name === "empty") {
      context.strokeStyle = line;
      context.strokeRect(x + 0.5, 0.5, wide - 1, height - 1);
    }
    if (cell >= 14 && !QUIET.includes(letter)) {
      context.fillStyle = name === "nvme" ? "#ffffff" : "#17212b";
      context.fillText(letter, x + wide / 2, height / 2 + 0.5);
    }
  }
  canvas.setAttribute("aria-label", summary(letters));
  return { fold };
}

function summary(letters) {
  const counts = new Map();
  for (const letter of letters) counts.set(letter, (counts.get(letter) || 0) + 1);
  return [...counts].map(([letter, count]) => `${letter} ${count}`).join(", ");
}

// Chunk numbers above the cells.
export function paintRuler(canvas, count) {
  const { context, width, height } = contextOf(canvas);
  const cell = width / count, apart = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000].find((n) => n * cell >= 44) || count;
  context.fillStyle = colour("soft");
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "bottom";
  for (let chunk = 0; chunk < count; chunk += apart) context.fillText(String(chunk), chunk * cell, height);
}

// A line of the last values, the newest at the right.
export function paintRate(canvas, values, room) {
  const { context, width, height } = contextOf(canvas);
  const most = Math.max(...values, 1e-9), step = width / (room - 1), from = room - values.length;
  const y = (value) => height - 2 - (value / most) * (height - 5);
  context.beginPath();
  values.forEach((value, i) => context.lineTo((from + i) * step, y(value)));
  context.strokeStyle = colour("accent");
  context.lineWidth = 1.8;
  context.lineJoin = "round";
  context.stroke();
  if (values.length > 1) {
    context.lineTo(width, height);
    context.lineTo(from * step, height);
    context.globalAlpha = 0.14;
    context.fillStyle = colour("accent");
    context.fill();
    context.globalAlpha = 1;
  }
  context.fillStyle = colour("line");
  context.fillRect(0, height - 1, width, 1);
}

export const PHASES = [["forward", "coming"], ["backward", "going"], ["ending", "complete"], ["updating", "updating"]];

// The last `seconds` of a job: the phases seen by the looks, the sealed steps and their durations (shaded: fetches that waited).
export function paintSteps(canvas, samples, seconds) {
  const { context, width, height } = contextOf(canvas);
  if (samples.length === 0) return;
  const now = samples[samples.length - 1].at, x = (at) => width - ((now - at) / seconds) * width, inks = Object.fromEntries(PHASES);
  const lane = 14, floor = height - lane - 6;
  context.fillStyle = colour("faint");
  context.fillRect(0, height - lane, width, lane);
  for (let i = 0; i + 1 < samples.length; ++i) {
    if (!inks[samples[i].phase]) continue;
    context.fillStyle = colour(inks[samples[i].phase]);
    context.fillRect(x(samples[i].at), height - lane, x(samples[i + 1].at) - x(samples[i].at) + 0.5, lane);
  }
  const sealed = samples.filter((sample, i) => i > 0 && sample.version > samples[i - 1].version && sample.stepSeconds > 0);
  const most = Math.max(...sealed.map((sample) => sample.stepSeconds), 1e-9);
  const bar = Math.max(2, Math.min(9, width / seconds / 2 - 1)), apart = 34;
  context.font = "10.5px system-ui, sans-serif";
  context.textAlign = "center";
  let labelled = -apart;
  for (const sample of sealed) {
    const high = (sample.stepSeconds / most) * (floor - 16), left = x(sample.at) - bar / 2;
    context.fillStyle = colour("soft");
    context.fillRect(left, floor - high, bar, high);
    context.fillStyle = colour("due");
    context.fillRect(left, floor - high * sample.waited, bar, high * sample.waited);
    if (left - labelled < apart || left < 8 || left > width - 12) continue;
    context.fillStyle = colour("soft");
    context.fillText(String(sample.version), left + bar / 2, 10);
    labelled = left;
  }
  context.fillStyle = colour("line");
  context.fillRect(0, floor, width, 1);
}
