// The page: reads memserver's state from the stream of `memctl page`, twice a second, and shows it. Foreign texts are set as text, never as HTML.

const PAUSE_MS = 500;
const key = location.hash.slice(1);
const state = { look: null, before: null, looks: 0, cards: new Map(), problem: "" };
window.tidepool = state;  // for debugging and tests

// h("p", {class: "soft"}, "text", node): an element.
function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  element.append(...children);
  return element;
}
// Parses a picture drawn by memctl into elements. The parsed document is inert: its scripts do not run, and memctl escapes foreign names.
const drawn = (text) => [...new DOMParser().parseFromString(text, "text/html").body.children];
const $ = (id) => document.getElementById(id);

// Formats numbers like memctl; the exact value stays in the element.
function bytesText(bytes) {
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit + 1 < names.length; ++unit) bytes /= 1024;
  return (unit === 0 || bytes >= 100 ? bytes.toFixed(0) : bytes >= 10 ? bytes.toFixed(1) : bytes.toFixed(2)) + " " + names[unit];
}
function secondsText(seconds) {
  if (seconds < 1) return (seconds * 1000).toFixed(0) + " ms";
  if (seconds < 60) return seconds.toFixed(1) + " s";
  const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  return whole < 3600 ? `${Math.floor(whole / 60)}:${two(whole % 60)} min` : `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}
function countText(count) {
  const [unit, name] = count >= 1e9 ? [1e9, " G"] : count >= 1e6 ? [1e6, " M"] : count >= 1e4 ? [1e3, " k"] : [1, ""];
  return unit === 1 ? count.toFixed(0) : (count / unit).toFixed(1) + name;
}
const number = (value, text, id) => h("data", id ? { value, "data-is": id } : { value }, text);
const bytes = (value, id) => number(value, bytesText(value), id);

function bar(parts, marks = []) {
  const spans = parts.map(([kind, share]) => {
    const span = h("span", { class: kind });
    span.style.width = Math.max(0, Math.min(1, share)) * 100 + "%";
    return span;
  });
  const lines = marks.map(([share, title]) => {
    const line = h("span", { class: "mark", title });
    line.style.left = `calc(${Math.min(1, share) * 100}% - 1px)`;
    line.style.width = "2px";
    return line;
  });
  return h("div", { class: "bar" }, ...spans, ...lines);
}
const share = (part, whole) => (whole > 0 ? part / whole : 0);

function memoryTile(name, id, used, whole) {
  return h("div", { class: "tile" }, h("h2", {}, name), h("p", { class: "big" }, bytes(used, id)), bar([["own", share(used, whole)]]),
    h("p", { class: "soft" }, "of ", bytes(whole, id + "-limit"), ` · ${(share(used, whole) * 100).toFixed(0)} %`));
}
function rateTile(name, id, rate, text) {
  return h("div", { class: "tile" }, h("h2", {}, name), h("p", { class: "big" }, number(rate.now, text(rate.now), id)), ...drawn(rate.picture));
}

const RATES = { "to-ranks": "To ranks", "from-ranks": "From ranks", updates: "Parameters updated", "nvme-read": "NVMe read", "nvme-written": "NVMe written" };
function showTiles(status, rates) {
  const perSecond = (id) => (value) => (id === "updates" ? countText(value) : bytesText(value)) + "/s";
  const tiles = [memoryTile("Host pool", "pool", status.pool.bytes_used, status.pool.bytes), memoryTile("rCaches", "rcache", status.rcache.bytes_used, status.rcache.bytes_limit)];
  if (status.nvme.bytes > 0) tiles.push(memoryTile("NVMe", "nvme", status.nvme.bytes_used, status.nvme.bytes));
  $("tiles").replaceChildren(...tiles, ...Object.entries(rates).map(([id, rate]) => rateTile(RATES[id], id, rate, perSecond(id))));
}

function showServer(status, health) {
  const worst = { ready: "ok", draining: "warn", starting: "warn" }[status.state] || "error";
  $("server").replaceChildren(h("span", { class: "badge " + worst, "data-is": "state" }, status.state), `memserver ${status.version} · ${status.socket_dir} · up `,
    number(status.uptime_seconds, secondsText(status.uptime_seconds), "uptime"), ` · ${status.jobs} ${status.jobs === 1 ? "job" : "jobs"}, ${status.sessions} ${status.sessions === 1 ? "rank" : "ranks"}`);
  document.title = `${health.status === "ok" ? "" : "⚠ "}Tidepool · ${status.state} · ${status.jobs} ${status.jobs === 1 ? "job" : "jobs"}`;
}

const SIGN = { ok: "✓", warn: "▲", error: "✕" };
function checkItem(check) {
  const muted = check.muted_seconds > 0 ? ` · muted for ${secondsText(check.muted_seconds)}` : "";
  return h("li", { class: check.severity }, h("span", { class: "name" }, `${SIGN[check.severity]} ${check.code}${muted}`), ` ${check.summary}` + (check.detail.length ? ` (${check.detail.join(", ")})` : ""),
    ...(check.severity === "ok" ? [] : [h("div", { class: "soft" }, "→ " + check.remedy)]));
}
function showHealth(health) {
  const open = $("health").querySelector("details")?.open, counts = (check) => check.severity !== "ok" && check.muted_seconds === 0, wrong = health.checks.filter(counts);
  const text = health.status === "ok" ? `all ${health.checks.length} checks are well` + (health.checks.some((check) => check.muted_seconds > 0) ? ", or muted" : "") : `${wrong.length} of ${health.checks.length} checks ask for attention`;
  const rest = h("details", open ? { open: "" } : {}, h("summary", {}, "all checks"), h("ul", {}, ...health.checks.filter((check) => !counts(check)).map(checkItem)));
  $("health").replaceChildren(h("div", { class: "card" }, h("div", { class: "all" }, h("h2", {}, "Health"), h("span", { class: health.status, "data-is": "health" }, `${SIGN[health.status]} ${text}`)),
    ...(wrong.length ? [h("ul", {}, ...wrong.map(checkItem))] : []), rest));
}

// The parts of a job's card, made once; only the numbers in them change.
function newCard(id) {
  const part = (name, tag = "div") => h(tag, { class: name });
  const card = { root: h("article", { class: "card job", "data-job": id }), head: part("head"), bars: part("bars"), map: part("map"), under: part("under"), hint: h("span"), key: part("key"), charts: part("over"), rows: [], experts: [], pointed: null };
  card.root.append(card.head, card.bars, card.map, card.under, card.key, card.charts);
  card.map.addEventListener("mousemove", (event) => pointAt(card, event));
  card.map.addEventListener("mouseleave", () => { card.pointed = null; showPointed(card); });
  return card;
}

function pointAt(card, event) {
  const stripe = card.map.querySelector(".stripe")?.getBoundingClientRect();
  const at = stripe && stripe.width > 0 ? (event.clientX - stripe.left) / stripe.width : -1, columns = Math.ceil(card.chunks / card.fold);
  card.pointed = at >= 0 && at < 1 ? Math.floor(at * columns) * card.fold : null;
  showPointed(card);
}
// Which experts lie in a chunk.
function expertsIn(card, chunk) {
  const texts = card.experts.filter((each) => each.first_chunk <= chunk && chunk <= each.last_chunk).map((each) => {
    const oneEach = each.last_expert - each.first_expert === each.last_chunk - each.first_chunk, first = each.first_expert + (oneEach ? chunk - each.first_chunk : 0), last = oneEach ? first : each.last_expert;
    return `${first === last ? "expert " + first : `experts ${first}-${last}`} of ${each.layer}`;
  });
  return texts.length ? ` (${texts.join(", ")})` : "";
}
function showPointed(card) {
  if (card.pointed === null || card.pointed >= card.chunks) {
    card.hint.textContent = card.resting;
    return;
  }
  const says = (row) => (row.kind === "rcache" && row.letters[card.pointed] === "." ? "not held" : card.names[row.letters[card.pointed]] || row.letters[card.pointed]);
  card.hint.textContent = `chunk ${card.pointed}${expertsIn(card, card.pointed)}: ` + card.rows.map((row) => `${row.name} ${says(row)}`).join(" · ");
}

const placeName = (row) => (row.kind === "rcache" ? `rank ${row.rank} rCache` : row.kind === "nvme" ? "NVMe" : "host pool");
function placeUse(row) {
  return row.kind === "rcache" ? [number(row.chunks_held, `${row.chunks_held} held`, "held-" + row.rank), " / ", bytes(row.bytes_limit)] : [bytes(row.bytes_used), " / ", bytes(row.bytes_limit)];
}

const lettersOf = (runs) => runs.map(([letter, count]) => letter.repeat(count)).join("");
function showMap(card, seen, legend, picture, key) {
  card.chunks = seen.chunks;
  card.fold = picture.fold;
  card.names = legend;
  card.experts = seen.experts ?? [];
  card.rows = seen.rows.map((row) => ({ kind: row.kind, name: placeName(row), letters: lettersOf(row.runs) }));
  const room = (text) => h("div", { class: "picture" }, ...drawn(text));
  const cells = seen.rows.flatMap((row, i) => [h("span", {}, placeName(row)), room(picture.rows[i]), h("span", { class: "use" }, ...placeUse(row))]);
  card.map.replaceChildren(h("span"), room(picture.ruler), h("span"), ...cells);
  card.resting = `${seen.chunks} chunks of up to ${bytesText(seen.chunk_bytes_max)}` + (card.fold > 1 ? `; a cell is ${card.fold} chunks and shows what moves most` : "; point at one to see where it is");
  const last = seen.last_step, fetched = last.fetches ? `last step: ${last.fetches} fetches, ${bytesText(last.bytes_fetched)} to ranks; ${last.fetches_waited} waited for their update` + (last.fetch_wait_seconds > 0 ? `, ${secondsText(last.fetch_wait_seconds)} together` : "") : "";
  const sum = (of) => card.experts.reduce((all, each) => all + of(each), 0), expertChunks = sum((each) => each.last_chunk - each.first_chunk + 1);
  const inUse = expertChunks ? `experts: ${sum((each) => each.chunks_fetched)} of ${expertChunks} chunks fetched in this step or the last` : "";
  card.under.replaceChildren(card.hint, h("span", {}, fetched), ...(inUse ? [h("span", {}, inUse)] : []));
  showPointed(card);
  card.key.replaceChildren(...drawn(key));
}

function showBars(card, job, status, account) {
  const limit = job.quota.limit_bytes ?? status.pool.bytes, others = Math.max(0, (account?.bytes_used ?? job.pool_bytes) - job.pool_bytes), guarantee = job.quota.guarantee_bytes;
  const whose = job.quota.limit_bytes === null ? "of the pool's " : "of its limit of ";
  const marks = guarantee > 0 ? [[share(guarantee, limit), "guaranteed: " + bytesText(guarantee)]] : [];
  const parts = [h("div", {}, h("h3", {}, `Host pool, account ${job.account}`), bar([["own", share(job.pool_bytes, limit)], ["rest", share(others, limit)]], marks),
    h("p", {}, bytes(job.pool_bytes, "job-pool"), " ", whose, bytes(limit, "job-limit"), ...(others ? [" · others of the account ", bytes(others)] : []), ...(guarantee ? [" · guaranteed ", bytes(guarantee)] : []))),
  h("div", {}, h("h3", {}, "rCaches"), bar([["own", share(job.rcache_bytes, status.rcache.bytes_limit)]]), h("p", {}, bytes(job.rcache_bytes, "job-rcache"), " of ", bytes(status.rcache.bytes_limit)))];
  const room = job.quota.nvme_limit_bytes ?? status.nvme.bytes;
  if (room > 0) parts.push(h("div", {}, h("h3", {}, "NVMe"), bar([["own", share(job.nvme_bytes, room)]]), h("p", {}, bytes(job.nvme_bytes, "job-nvme"), " of ", bytes(room), ` · ${job.chunks_spilled} chunks`)));
  card.bars.replaceChildren(...parts);
}

function showHead(card, job, seen) {
  const phase = seen.step.phase && seen.step.phase !== job.state ? " · " + seen.step.phase : "";
  const micro = seen.step.micro_batches > 1 ? `, micro-batch ${seen.step.micro_batch}/${seen.step.micro_batches}` : "";
  const lasted = job.step_seconds > 0 ? [" · ", number(job.step_seconds, secondsText(job.step_seconds), "job-seconds"), " a step"] : [];
  const spread = job.step_seconds_p99 > 0 ? [` (p50 ${secondsText(job.step_seconds_p50)}, p99 ${secondsText(job.step_seconds_p99)})`] : [];
  const told = [...(job.loss === null ? [] : [" · loss ", number(job.loss, job.loss.toFixed(4), "job-loss")]),
    ...(job.tokens_per_second === null ? [] : [" · ", number(job.tokens_per_second, Math.round(job.tokens_per_second).toLocaleString("en"), "job-tokens"), " tokens/s"]),
    ...(job.cpus_shared ? [" · its threads share CPUs with others"] : [])];
  const skipped = job.steps_skipped > 0 ? [` · ${job.steps_skipped} skipped`] : [];
  card.head.replaceChildren(h("h2", {}, job.name), h("span", { class: "badge " + (job.suspended || job.ranks_attached < job.world ? "warn" : "ok"), "data-is": "job-state" }, job.suspended ? "suspended" : job.state + phase),
    h("span", { class: "facts" }, "step ", number(job.version, String(job.version), "job-step"), micro, ...lasted, ...spread, ...told, " · ranks ", number(job.ranks_attached, `${job.ranks_attached}/${job.world}`, "job-ranks"),
      ` · ${countText(job.parameters)} parameters in ${job.dtype} · user ${job.uid} · weight ${job.quota.weight}, ${job.quota.priority} priority`, ...skipped));
}

function showJobs(look) {
  const accounts = new Map(look.quotas.accounts.map((account) => [account.account, account])), there = new Set(), jobs = $("jobs");
  if (look.jobs.jobs.length === 0) {
    state.cards.clear();
    const start = `trainer run --socket-dir ${look.status.socket_dir}`;
    jobs.replaceChildren(h("div", { class: "card emptyroom" }, h("h2", {}, "No job yet"), h("p", {}, "Start one with ", h("code", {}, start)), h("p", { class: "soft" }, "It appears here by itself, with every chunk of its model.")));
    return;
  }
  if (state.cards.size === 0) jobs.replaceChildren();
  for (const job of look.jobs.jobs) {
    const seen = look.residency.jobs.find((each) => each.id === job.id);
    if (!seen) continue;  // it appeared between two reports
    there.add(job.id);
    if (!state.cards.has(job.id)) {
      state.cards.set(job.id, newCard(job.id));
      jobs.append(state.cards.get(job.id).root);
    }
    const card = state.cards.get(job.id);
    showHead(card, job, seen);
    showBars(card, job, look.status, accounts.get(job.account));
    showMap(card, seen, look.residency.legend, look.pictures.jobs[job.id], look.pictures.key);
    card.charts.replaceChildren(...drawn(look.pictures.jobs[job.id].charts));
  }
  for (const [id, card] of state.cards) {
    if (there.has(id)) continue;
    card.root.remove();
    state.cards.delete(id);
  }
}

function table(titles, rows, texts) {
  const cell = (tag) => (value, i) => h(tag, i < texts ? { class: "text" } : {}, value);
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ...titles.map(cell("th")))), h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map(cell("td")))))));
}
function showAccounts(quotas) {
  const limit = (value) => (value === null ? "none" : bytes(value));
  const rows = quotas.accounts.map((each) => [each.account, bytes(each.bytes_used, "account-used"), bytes(each.bytes_room), bytes(each.guarantee_bytes), limit(each.limit_bytes), bytes(each.nvme_bytes_used), limit(each.nvme_limit_bytes), String(each.weight), each.priority]);
  const cards = [];
  if (quotas.waiting.length) {
    const waiting = quotas.waiting.map((each) => [each.name, each.account, each.why, String(each.rank), bytes(each.pool_bytes), bytes(each.rcache_bytes), secondsText(each.waited_seconds), each.priority]);
    cards.push(h("div", { class: "card" }, h("h2", {}, "Waiting for room"), table(["job", "account", "why", "rank", "host pool", "rCache", "waited", "priority"], waiting, 3)));
  }
  if (rows.length) cards.push(h("div", { class: "card" }, h("h2", {}, "Accounts"), table(["account", "used", "room for one more job", "guarantee", "limit", "NVMe used", "NVMe limit", "weight", "priority"], rows, 1)));
  $("accounts").replaceChildren(...cards);
}

function showProblem(title, detail, remedy) {
  state.problem = title;
  document.body.classList.toggle("stale", title !== "");
  $("banner").hidden = title === "";
  if (title === "") return;
  const badge = $("server").querySelector(".badge");
  badge?.setAttribute("class", "badge error");
  badge?.replaceChildren("no answer");
  $("banner").replaceChildren(h("strong", {}, title), h("div", {}, detail), h("div", {}, "→ " + remedy));
  document.title = "✕ Tidepool · " + title;
}

function show(look) {
  state.look = look;
  $("asof").textContent = "as of " + new Date().toLocaleTimeString();
  document.querySelector("main").hidden = false;
  showServer(look.status, look.health);
  showTiles(look.status, look.pictures.rates);
  showHealth(look.health);
  showJobs(look);
  showAccounts(look.quotas);
  ++state.looks;
}

function take(look) {
  if (look.problem) {
    const { code, name, detail, where, remedy } = look.problem;
    showProblem("memserver does not answer", `${code} ${name}: ${detail}${where ? " (" + where + ")" : ""}`, remedy);
    return;
  }
  try {
    show(look);
    showProblem("");
  } catch (error) {
    console.error(error);
    showProblem("this memserver says other things than this page knows", String(error), "use memctl and memserver of one release");
  }
}

// Reads looks, one line each, until the stream ends; of several that arrive together only the last counts.
async function read(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    if (lines.length) take(JSON.parse(lines[lines.length - 1]));
  }
}

// A hidden page requests nothing.
async function follow() {
  const leaving = new AbortController();
  const whenHidden = () => document.hidden && leaving.abort();
  document.addEventListener("visibilitychange", whenHidden);
  try {
    const answer = await fetch("/stream", { headers: { Authorization: "Bearer " + key }, cache: "no-store", signal: leaving.signal });
    if (answer.ok) {
      await read(answer.body);
    } else {
      const look = await answer.json();
      showProblem("this page is not for whoever has this address", look.detail, look.remedy);
    }
  } catch {
    if (!leaving.signal.aborted) showProblem("memctl page has ended", "Nothing answers at " + location.host + ". What is shown is old.", "start it again, and open the address that it prints");
  } finally {
    document.removeEventListener("visibilitychange", whenHidden);
  }
}

async function forever() {
  for (;;) {
    if (!document.hidden) await follow();
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}
window.addEventListener("hashchange", () => location.reload());
forever();
