// What a person would do with the dashboard, one step after the other. Prints a line a step; the first that fails ends it.
const { chromium } = require("playwright-core");
const fs = require("fs");
const path = require("path");
const assert = require("assert");

const [url, runs] = process.argv.slice(2);
const RUN = "20260101T000000Z-bench-made";
const log = path.join(runs, RUN, "events.jsonl");

const verdict = (passed) => ({
  format: 1, status: passed ? "passed" : "mismatch", rule: null, reason: passed ? null : "output 0 is <b>wrong</b>",
  compiled: true, correct: passed,
  progress: { parsed: true, compiled: true, loaded: true, ran: true, shape_ok: true, share_within_tolerance: 1 },
  profile: "rl", target: "cpu", device: "a processor",
  times_us: passed ? { candidate: 20, eager: 40, compile: 30, spread: 0.02, samples: 40, single: 20, burst: null, constant: 100 } : null,
  speedup: passed ? { eager: 2, compile: 1.5 } : null,
  matched_precision: passed ? { mode: "fp32", eager_us: 40, compile_us: 30, speedup: { eager: 2, compile: 1.5 } } : null,
  numerics: null, reward: { robust: passed ? 3 : -1, raw: 1.5, composite: 3, ladder: passed ? 3 : -0.2 },
  seconds: { compile: 1, verify: 0.1, time: 1, total: 2.1 }, isolation: null,
  trust: { contained: true, degenerate_inputs: false, deferred_work: false, fp64: "all", excluded_share: 0, checks: { values: "held" } },
  notes: [], evidence: null,
});
const kernel = (n) => `// number ${n}\n__global__ void scale(float* out) { out[0] = ${n}.0f; }\n`;
const policy = { name: "script:made", hash: null, step: null };
const ended = (n, passed) => ({
  kind: "episode_ended",
  trajectory: {
    format: 2, id: String(n), policy, sample: 1, mode: "single", target: "cpu",
    task: { id: `level1/${n}`, name: `task ${n}`, source: "class Model:\n    pass\n", level: 1, problem_id: n, origin: "made" },
    messages: [
      { role: "user", text: "Write `ModelNew`." },
      { role: "assistant", text: "<script>document.title = 'hacked'</script>", calls: [] },
      { role: "assistant", text: "Once more.", calls: [] },
    ],
    elisions: [],
    attempts: [
      { message: 1, files: { "kernels/scale.cu": kernel(1) }, verdict: verdict(false) },
      { message: 2, files: { "kernels/scale.cu": kernel(2) }, verdict: verdict(passed) },
    ],
    best: passed ? 1 : null, ending: { kind: "finished" },
    usage: { prompt_tokens: 100, completion_tokens: 50, cached_tokens: 0 }, seconds: 3, tokens: null,
  },
});
const say = (event) => fs.appendFileSync(log, JSON.stringify({ format: 2, at: new Date().toISOString(), event }) + "\n");

let passed = 0;
const ok = (what) => {
  passed += 1;
  console.log(`ok   ${what}`);
};

async function main() {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"] });
  const shot = (page, name) => page.screenshot({ path: path.join(process.env.SHOTS, `${name}.png`), fullPage: true });
  const context = await browser.newContext({ colorScheme: "light" });
  const page = await context.newPage();
  const troubles = [];
  page.on("pageerror", (error) => troubles.push(String(error)));
  page.on("console", (message) => message.type() === "error" && troubles.push(message.text()));

  await page.goto(url);
  await page.getByText("No runs in").waitFor();
  ok("an empty folder says so");

  fs.mkdirSync(path.join(runs, RUN));
  fs.writeFileSync(path.join(runs, RUN, "config.json"), "{}");
  say({ kind: "episode_started", episode: { task: "level1/1", sample: 1 } });
  say(ended(1, true));
  await page.getByRole("link", { name: RUN }).waitFor({ timeout: 8000 });
  ok("a run appears without a reload");

  await page.getByRole("link", { name: RUN }).click();
  await page.getByRole("heading", { level: 1, name: RUN }).waitFor();
  assert.equal(await page.locator("svg.plot path.curve").count(), 2);
  ok("a plot renders");
  await page.getByText("1 episode", { exact: true }).waitFor();
  say(ended(2, false));
  await page.getByText("2 episodes", { exact: true }).waitFor({ timeout: 8000 });
  ok("a run updates live");
  await shot(page, "run-light");

  await page.getByRole("link", { name: "not passed" }).click();
  await page.getByText("1 episode", { exact: true }).waitFor();
  await page.getByLabel("table: 1 episode").getByRole("link", { name: "level1/2", exact: true }).click();
  await page.getByRole("heading", { level: 1, name: "task 2, sample 1" }).waitFor();
  assert.ok(!(await page.title()).includes("hacked"), "what a policy said became part of the page");
  await page.getByText("since the attempt before").click();
  assert.equal(await page.locator("ins").first().isVisible(), true);
  await shot(page, "episode-light");
  ok("an episode opens turn by turn, with what changed, and nothing of it runs");

  await page.goto(url);
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
  const seen = [];
  for (let n = 0; n < 24; n++) {
    await page.keyboard.press("Tab");
    seen.push(await page.evaluate(() => document.activeElement.textContent));
  }
  assert.ok(seen.includes("Leaderboard") && seen.includes(RUN), seen.join(", "));
  while ((await page.evaluate(() => document.activeElement.textContent)) !== RUN) await page.keyboard.press("Shift+Tab");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: RUN }).waitFor();
  ok("the keyboard gets everywhere");

  await page.goto(`${url}/?q=none`);
  await page.getByText("No run is like that.").waitFor();
  await page.getByRole("searchbox").fill("made");
  await page.getByRole("button", { name: "Show" }).click();
  await page.getByRole("link", { name: RUN }).waitFor();
  ok("runs are searched");

  for (const place of ["/leaderboard", "/machine", `/compare?run=${RUN}`]) {
    const response = await page.goto(url + place);
    assert.equal(response.status(), 200);
  }
  await page.goto(`${url}/runs/none`);
  await page.getByText("There is no such run").waitFor();
  ok("leaderboard, machine, and a run that is not there");

  const ground = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await ground(page);
  const night = await (await browser.newContext({ colorScheme: "dark" })).newPage();
  await night.goto(`${url}/runs/${RUN}`);
  assert.notEqual(await ground(night), light);
  await shot(night, "run-dark");
  const phone = await (await browser.newContext({ viewport: { width: 360, height: 740 } })).newPage();
  await phone.goto(`${url}/runs/${RUN}`);
  const overflow = await phone.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(overflow <= 0, `the page is ${overflow} pixels wider than a phone`);
  await shot(phone, "run-phone");
  ok("dark, and on a phone");

  assert.deepEqual(troubles.filter((one) => !one.includes("404")), []);
  await browser.close();
  console.log(`${passed} passed, 0 failed`);
}

main().catch((error) => {
  console.error(`FAILED ${error.stack}`);
  process.exit(1);
});
