/** Measures the page with 1,000 nodes; prints lines of JSON that `katz bench editor` reads. */
import { expect, type Page, test } from "@playwright/test";
import { openFile } from "../e2e/steps";
import { worked } from "./frames";
import { large, ONE, opened } from "./large";

test.use({ viewport: { width: 1920, height: 1080 } });
test.setTimeout(240_000);

async function visit(page: Page): Promise<number> {
  const began = Date.now();
  await page.goto("/");
  await page.getByRole("button", { name: "Open files" }).waitFor();
  await expect(page.getByText("connected", { exact: true })).toBeVisible();
  return (Date.now() - began) / 1000;
}

/** `last`: a node of it that is in view. */
async function open(page: Page, name: string, document: string, last: string): Promise<number> {
  const began = Date.now();
  await openFile(page, name, document);
  await page.locator(`[data-node="${last}"]`).waitFor({ state: "attached" });
  await page.evaluate(() => new Promise(requestAnimationFrame));
  return (Date.now() - began) / 1000;
}

/** Moves of the mouse and of the wheel in a gesture: of fewer frames the last hundredth is a single one. */
const [MOVES, TURNS] = [300, 240];

async function pan(page: Page): Promise<void> {
  await page.mouse.move(960, 560);
  await page.mouse.down({ button: "middle" });
  for (let step = 0; step < MOVES; step += 1) {
    await page.mouse.move(960 + 350 * Math.sin(step / 12), 560 + 250 * Math.sin(step / 9));
  }
  await page.mouse.up({ button: "middle" });
}

async function zoom(page: Page): Promise<void> {
  await page.mouse.move(960, 560);
  for (let step = 0; step < TURNS; step += 1) await page.mouse.wheel(0, step % 60 < 30 ? 40 : -40);
}

/** Waits until all that is in view is drawn. */
async function drawn(page: Page): Promise<void> {
  await page.locator(".react-flow:not(.moving)").waitFor({ state: "attached" });
}

/** Drags the node whose title is at this point. */
async function drag(page: Page, x: number, y: number): Promise<void> {
  await page.mouse.move(x, y);
  await page.mouse.down();
  for (let step = 1; step < MOVES; step += 1) {
    await page.mouse.move(x + 200 * Math.sin(step / 12), y + 120 * Math.sin(step / 9));
  }
  await page.mouse.up();
}

/** Zooms in on the node in the middle until its text can be read; returns where its title is. */
async function near(page: Page): Promise<{ x: number; y: number }> {
  const id = await page.evaluate(() => {
    const far = (one: Element) => {
      const box = one.getBoundingClientRect();
      return Math.hypot(box.x - innerWidth / 2, box.y - innerHeight / 2);
    };
    const cards = [...document.querySelectorAll("[data-node]")];
    return cards.sort((one, other) => far(one) - far(other))[0]?.getAttribute("data-node");
  });
  const card = page.locator(`[data-node="${id}"]`);
  for (let turn = 0; turn < 60; turn += 1) {
    const box = await card.boundingBox();
    if (box === null) throw new Error("the node is not drawn");
    if (box.width > 180) return { x: box.x + box.width / 2, y: box.y + 12 };
    await page.mouse.move(box.x + box.width / 2, box.y + 2);
    await page.mouse.wheel(0, -120);
    await page.waitForTimeout(60);
  }
  throw new Error("zooming had no effect");
}

/** The server plans the graph, 250 samplers, on the same processors meanwhile. */
const BESIDE = "pan all beside planning";

/** Figures are told as soon as they are known: what ends a measurement early takes only later ones along. */
function tell(figures: Record<string, unknown>): void {
  console.log(`\nFIGURES ${JSON.stringify(figures)}`);
}

test("a graph of 1,000 nodes", async ({ page, browser, request }) => {
  const one = await opened(request, ONE);
  const document = await large(request);
  const usable = await visit(page);
  const told = async (name: string, gesture: () => Promise<void>) =>
    tell({ [name]: await worked(browser, page, gesture) });
  tell({ usable });
  // what the browser itself works here, with one node to look at
  await open(page, "one.json", one, "1");
  await told("one node", () => pan(page));
  let isPlanned = false;
  const planned = page
    .waitForResponse((one) => one.url().endsWith("/katz/plan") && one.ok())
    .then((one) => one.finished())
    .then(() => (isPlanned = true));
  tell({ opening: await open(page, "large.json", document, "2") });
  await page.getByRole("button", { name: "Fit view" }).click();
  await drawn(page);
  await told(BESIDE, () => pan(page));
  tell({ planning_lasted: !isPlanned }); // as long as the gesture
  await planned;
  await page.waitForTimeout(1_000); // and what was planned is drawn
  await drawn(page);
  for (const [name, gesture] of Object.entries({ pan, zoom })) {
    await told(`${name} all`, () => gesture(page));
  }
  const { x, y } = await near(page);
  await drawn(page);
  await told("drag near", () => drag(page, x, y));
  for (const [name, gesture] of Object.entries({ pan, zoom })) {
    await told(`${name} near`, () => gesture(page));
  }
  // a control: what these measures say of a page that works too much
  await page.evaluate(() => {
    addEventListener("pointermove", () => {
      const until = performance.now() + 30;
      while (performance.now() < until);
    });
  });
  await told("control", () => pan(page));
});
