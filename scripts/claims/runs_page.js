// Looks at the page of `runs serve` and at a report in headless Chromium.
//
// Usage: node runs_page.js many|real JSON
//
// Prints one object: checks, by name, and figures. Started by runs_page.py; playwright-core is found by NODE_PATH.
"use strict";
const { chromium } = require("playwright-core");
const { pathToFileURL } = require("url");

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const SIZE = { width: 1280, height: 800 };

// A page that records every address that is asked for.
async function open(browser, address, colorScheme) {
  const context = await browser.newContext({ viewport: SIZE, colorScheme: colorScheme || "light" });
  const page = await context.newPage();
  page.setDefaultTimeout(10_000);
  page.asked = [];
  page.errors = [];
  context.on("request", request => page.asked.push(request.url()));
  page.on("pageerror", error => page.errors.push(error.message));
  page.on("console", message => { if (message.type() === "error") page.errors.push(message.text()); });
  const begun = Date.now();
  await page.goto(address);
  if (address.startsWith("http")) await page.waitForSelector("html[data-ready]");
  page.seconds = (Date.now() - begun) / 1000;
  return page;
}

async function many(browser, { address, runs }) {
  const checks = {};
  const page = await open(browser, address);
  checks["500 runs are listed"] = await page.locator("#list .run").count() === runs;
  await page.fill("#search", "run-12");
  checks["a search finds ten of them"] = await page.locator("#list .run").count() === 10;
  await page.fill("#search", "");
  await page.locator("#tags .tag", { hasText: "sweep-3" }).click();
  checks["a tag finds its seventh"] = Math.abs(await page.locator("#list .run").count() - runs / 7) < 1;
  checks["charts of several long runs are there"] = await page.locator("#curves .chart").first().locator("path.line").count() === 3;
  checks["nothing but this server was asked"] = page.asked.every(url => url.startsWith(address));
  checks["no error with 500 runs"] = page.errors.length === 0;
  return { checks, seconds: page.seconds };
}

const select = (page, name, isOn) => page.locator("#list .run").filter({ has: page.locator(`.name:text-is(${JSON.stringify(name)})`) })
  .locator("input").setChecked(isOn);
const path = page => page.locator('.chart[data-tag="train/loss"] path.line').first().getAttribute("d");

async function real(browser, { address, hostile, report, pictures }) {
  const checks = {};
  const page = await open(browser, address);
  const picture = (of, name) => pictures ? of.screenshot({ path: `${pictures}/${name}.png` }) : null;
  const checked = page.locator("#list .run input:checked");
  while (await checked.count()) await checked.first().click();
  checks["without a selection the page says so"] = await page.locator("#empty").isVisible();
  for (const name of ["minilm baseline", "minilm lr-2e-4", "minilm lr-1e-5"]) await select(page, name, true);
  await page.waitForSelector('.chart[data-tag="train/loss"] path.line >> nth=2');
  checks["three runs are compared in one chart"] = await page.locator('.chart[data-tag="train/loss"] path.line').count() === 3;
  const raw = await path(page);
  await page.locator("#bar input[type=range]").fill("0.8");
  const smooth = await path(page);
  checks["smoothing changes the line and keeps the raw one"] = raw !== smooth
    && await page.locator('.chart[data-tag="train/loss"] path.raw').count() === 3;
  await picture(page, "runs-page");
  await page.click("#bar [data-value=tokens]");
  checks["the axis can be tokens"] = (await page.locator('.chart[data-tag="train/loss"]').getAttribute("aria-label")).includes("over tokens");
  await page.locator('.chart[data-tag="train/loss"]').focus();
  await page.keyboard.press("ArrowRight");
  checks["a chart is read by the keyboard"] = await page.locator('.chart[data-tag="train/loss"] .tip div').count() === 4;
  await page.click("#bar [data-value=settings]");
  const settings = await page.locator("#settings tbody tr td:first-child").allTextContents();
  checks["settings that differ are shown"] = settings.includes("train.lr") && !settings.includes("train.batch_size");
  await page.click("#bar [data-value=system]");
  checks["system figures are shown"] = await page.locator('#system .chart[data-tag="time/tokens_per_s"]').isVisible()
    && await page.locator("#phases .keys").count() === 3;
  await page.click("#bar [data-value=events]");
  checks["events are shown"] = (await page.locator("#events td").allTextContents()).includes("end");
  await page.click("#bar [data-value=curves]");
  await page.fill("#search", "lr sweep 1e-5");
  checks["a search looks at names and tags"] = await page.locator("#list .run").count() === 1;
  await page.fill("#search", "");
  const live = page.locator("#list .run", { hasText: "in progress" });
  const step = async () => Number((await live.locator(".step").textContent()).split("/")[0]);
  await select(page, "in progress", true);
  const before = await step();
  await page.waitForFunction(before => {
    const row = [...document.querySelectorAll("#list .run")].find(row => row.textContent.includes("in progress"));
    return Number(row.querySelector(".step").textContent.split("/")[0]) > before;
  }, before, { timeout: 60_000 }).catch(() => null);
  checks["a run in progress is followed"] = await step() > before && (await live.textContent()).includes("running");
  checks["a name that is markup is text"] = await page.locator("#list .name").filter({ hasText: "onerror" }).textContent() === hostile
    && await page.locator("img, #list script, #tags script").count() === 0 && await page.title() === "Runs";
  await select(page, hostile, true);
  await page.locator("#selected tr", { hasText: "onerror" }).getByRole("button", { name: /^Delete/ }).click();
  checks["a deletion asks first"] = await page.locator("#confirm").isVisible()
    && await page.evaluate(() => document.activeElement.id) === "confirm-no";
  await page.click("#confirm-yes");
  await page.waitForFunction(() => ![...document.querySelectorAll("#list .name")].some(node => node.textContent.includes("onerror")));
  checks["no request left this server"] = page.asked.every(url => url.startsWith(address));
  checks["no error on the page"] = page.errors.length === 0;
  if (page.errors.length) console.error(page.errors);
  const dark = await open(browser, address + "#" + new URLSearchParams([["run", "baseline"], ["run", "lr-2e-4"], ["tab", "system"]]), "dark");
  checks["an address keeps what is shown"] = await dark.locator("#system .chart").first().isVisible();
  await picture(dark, "runs-page-dark");
  const file = pathToFileURL(report).href;
  const reported = await open(browser, file);
  checks["the report has its charts"] = await reported.locator('.chart[data-tag="train/loss"] path.line').count() === 3;
  checks["the report has ten parts"] = await reported.locator("h2").count() === 10;
  checks["the report shows markup as text"] = await reported.locator("img").count() === 0
    && (await reported.locator("h1").textContent()).includes(hostile);
  checks["the report asks for nothing"] = reported.asked.every(url => url === file) && reported.errors.length === 0;
  if (reported.errors.length || reported.asked.length > 1) console.error(reported.asked, reported.errors);
  return { checks };
}

(async () => {
  const [what, json] = process.argv.slice(2);
  // Names lead nowhere, so that a request to another host would fail as well as be seen.
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: [...FLAGS, "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"] });
  try {
    console.log(JSON.stringify(await { many, real }[what](browser, JSON.parse(json))));
  } finally {
    await browser.close();
  }
})().catch(error => { console.error(error); process.exit(1); });
