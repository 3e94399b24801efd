// Every page with real runs, at three widths and in both colour schemes: nothing is clipped, no plot is empty, nothing fails, and
// axe-core finds no serious or critical fault. Prints every fault it met and exits 1 if there was one.
//   node walk.cjs URL        CHROMIUM and SHOTS in the environment
const { chromium } = require("playwright-core");
const fs = require("fs");
const path = require("path");

const [url] = process.argv.slice(2);
const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const WIDTHS = { phone: [390, 844], laptop: [1366, 768], "4k": [3840, 2160] };
const SERIOUS = ["serious", "critical"];
// Answers of other places are for programs.
const PAGES = /^\/(runs\/|compare|leaderboard|machine|\?|$)/;

/// One address of each kind of page; of several of a kind the first.
async function pages(page) {
  const found = new Map();
  const links = async (place) => {
    await page.goto(url + place);
    const all = await page.$$eval("a[href]", (links) => links.map((link) => link.href));
    return all.filter((link) => link.startsWith(url)).map((link) => link.slice(url.length).replace(/#.*/, "")).filter((link) => PAGES.test(link));
  };
  const add = (name, place) => found.has(name) || found.set(name, place);
  add("home", "/");
  add("home-none", "/?q=nothing-like-this");
  add("leaderboard", "/leaderboard");
  add("machine", "/machine");
  const runs = (await (await fetch(`${url}/v1/runs`)).json()).runs.map((run) => run.name);
  for (const run of runs) {
    const place = `/runs/${encodeURIComponent(run)}`;
    add(`run-${run}`, place);
    for (const link of await links(place)) {
      if (link.startsWith(`${place}/step`)) add(`step-of-${run}`, link);
      if (link.startsWith(`${place}/episode`)) {
        const number = [...found.keys()].filter((name) => name.startsWith(`episode-of-${run}`)).length;
        if (number < 3 && ![...found.values()].includes(link)) add(`episode-of-${run}-${number + 1}`, link);
      }
      if (link === `${place}/start`) add(`start-of-${run}`, link);
    }
  }
  // What takes a minute is asked for once of each: of an attempt, and of what an `optimize` began with.
  for (const name of ["episode-of-bench-compiler-1", "start-of-optimize"]) {
    if (!found.has(name)) continue;
    await measure(page, found.get(name));
    for (const link of await links(found.get(name))) if (link.includes("/assembly")) add(`assembly-of-${name}`, link);
  }
  const both = (one, other) => runs.includes(one) && runs.includes(other) && add(`compare-${one}-${other}`, `/compare?run=${one}&run=${other}`);
  both("bench-script", "bench-compiler");
  both("sft", "grpo");
  return found;
}

/// Presses the button that has an attempt measured, and waits until its bottleneck is named.
async function measure(page, place) {
  await page.goto(url + place);
  const button = page.getByRole("button", { name: "Measure it" }).first();
  if (await button.count()) await button.click();
  await page.getByText("The bottleneck is").first().waitFor({ timeout: 600_000 });
}

/// What a person would call broken, told by the page itself.
const looks = () => {
  const faults = [];
  const shown = (node) => node.getClientRects().length > 0;
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 0) faults.push(`the page is ${wide} pixels wider than the window`);
  // What lies past the edge of something that does not scroll cannot be read.
  for (const node of document.querySelectorAll("td, th, dd, dt, h1, h2, h3, p, li, summary, figcaption")) {
    if (!shown(node) || node.closest(".scroll, .skip, pre")) continue;
    const { right, left } = node.getBoundingClientRect();
    if (right > innerWidth + 1 || left < -1) if (!node.closest("thead")) faults.push(`cut off at the edge: ${node.textContent.slice(0, 60)}`);
  }
  for (const plot of document.querySelectorAll("svg.plot")) {
    if (shown(plot) && !plot.querySelector("path.curve, path.band, rect, circle, path.dot")) faults.push(`empty plot: ${plot.getAttribute("aria-label")?.slice(0, 80)}`);
    if (/NaN|inf/i.test(plot.innerHTML.replace(/<title>.*?<\/title>/gs, "").match(/(?:d|cx|cy|x|y|points)="[^"]*(?:NaN|inf)[^"]*"/i)?.[0] ?? "")) faults.push("a plot has places that are no numbers");
  }
  const text = document.body.innerText;
  for (const word of ["NaN", "undefined", "[object", "null"]) if (new RegExp(`(^|\\s)${word.replace("[", "\\[")}(\\s|$)`).test(text.replace(/```[\s\S]*?```/g, ""))) if (!document.querySelector("pre")) faults.push(`the page says \`${word}\``);
  return faults;
};

/// Faults that are put onto a page for it must be seen: else the check sees nothing.
async function missed(browser) {
  const page = await (await browser.newContext({ viewport: { width: 390, height: 844 }, bypassCSP: true })).newPage();
  await page.goto(url);
  await page.evaluate(() => {
    document.querySelector("main").innerHTML += '<img src="data:,"><svg class="plot" aria-label="nothing"></svg><p style="width: 900px">far too wide</p>';
  });
  const seen = await page.evaluate(looks);
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
  const faults = { "an image without a name": violations.some((one) => one.id === "image-alt"), "an empty plot": seen.some((one) => one.startsWith("empty plot")), "a page that is too wide": seen.some((one) => one.includes("wider")) };
  return Object.keys(faults).filter((name) => !faults[name]);
}

async function main() {
  const launched = { executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"] };
  const browser = await chromium.launch(launched);
  const first = await (await browser.newContext()).newPage();
  const all = await pages(first);
  await first.close();
  const faults = new Map();
  for (const kind of ["run-rollout", "run-bench", "run-sft", "run-grpo", "run-optimize", "episode-of-", "step-of-", "start-of-", "assembly-of-", "compare-"])
    if (![...all.keys()].some((name) => name.startsWith(kind))) faults.set(`there is no page \`${kind}…\` to look at`, ["the list of pages"]);
  const met = (where, what) => faults.set(what, [...(faults.get(what) ?? []), where]);
  let seen = 0;
  for (const [size, [width, height]] of Object.entries(WIDTHS)) {
    for (const colorScheme of ["light", "dark"]) {
      const context = await browser.newContext({ viewport: { width, height }, colorScheme, bypassCSP: true });
      const page = await context.newPage();
      let where = "";
      page.on("pageerror", (error) => met(where, `script: ${error}`));
      page.on("console", (message) => message.type() === "error" && met(where, `console: ${message.text()}`));
      for (const [name, place] of all) {
        where = `${name} (${size}, ${colorScheme})`;
        const answer = await page.goto(url + place, { waitUntil: "load" });
        if (answer.status() !== 200) met(where, `status ${answer.status()}`);
        for (const fault of await page.evaluate(looks)) met(where, fault);
        await page.evaluate(axe);
        const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
        for (const one of violations.filter((one) => SERIOUS.includes(one.impact))) met(where, `axe ${one.id} (${one.impact}): ${one.help}: ${one.nodes[0].target} ${one.nodes[0].html.slice(0, 120)}`);
        if (colorScheme === "light" || size === "laptop") await page.screenshot({ path: path.join(process.env.SHOTS, `${name}-${size}-${colorScheme}.png`), fullPage: true });
        seen += 1;
      }
      await context.close();
    }
  }
  const blind = await missed(browser);
  if (blind.length > 0) met("this check itself", `it did not see ${blind.join(" and ")}`);
  await browser.close();
  for (const [what, where] of faults) console.log(`FAULT ${what}\n      ${where.length} times, first at ${where[0]}`);
  console.log(`${all.size} pages, each at ${Object.keys(WIDTHS).length} widths in 2 colour schemes: ${seen} looked at, ${faults.size} faults`);
  process.exit(faults.size > 0 || seen === 0 ? 1 : 0);
}

main().catch((error) => {
  console.error(`FAILED ${error.stack}`);
  process.exit(1);
});
