/** Long use: jobs with previews, and documents opened and closed, leak nothing. */
import { type CDPSession, expect, type Page } from "@playwright/test";
import { node, openTemplate, test } from "./steps";

const JOBS = Number(process.env.KATZ_LONG ?? "10"); // 500 in a full run

test.skip(process.env.KATZ_LONG === undefined, "takes minutes: KATZ_LONG=500");
const OPENED = Math.max(5, Math.round(JOBS / 5));
const GROWTH = 0.1; // of the heap after warm-up

interface Held {
  readonly heap: number;
  readonly listeners: number;
  readonly nodes: number;
  readonly blobs: number;
}

async function held(page: Page, session: CDPSession): Promise<Held> {
  for (let time = 0; time < 3; time++) await session.send("HeapProfiler.collectGarbage");
  const { metrics } = await session.send("Performance.getMetrics");
  const value = (name: string) => metrics.find((one) => one.name === name)?.value ?? 0;
  return {
    heap: value("JSHeapUsedSize"),
    listeners: value("JSEventListeners"),
    nodes: value("Nodes"),
    blobs: await page.evaluate(() => (window as unknown as { open: Set<string> }).open.size),
  };
}

test("P0.29 P0.33 many jobs and documents leak no memory, listeners or images", async ({
  page,
}) => {
  test.setTimeout(120_000 + JOBS * 3_000);
  await page.addInitScript(() => {
    const open = new Set<string>();
    const { createObjectURL, revokeObjectURL } = URL;
    URL.createObjectURL = (what) => {
      const url = createObjectURL(what);
      open.add(url);
      return url;
    };
    URL.revokeObjectURL = (url) => {
      open.delete(url);
      revokeObjectURL(url);
    };
    Object.assign(window, { open });
  });
  await page.goto("/");
  await expect(page.locator("main.canvas")).toBeVisible();
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable");
  const state = page.locator(".toolbar .state");

  async function use(jobs: number, documents: number, first: number): Promise<void> {
    await openTemplate(page, "Text to image");
    const seed = node(page, "5").getByLabel("seed", { exact: true });
    for (let job = 0; job < jobs; job++) {
      await seed.fill(String(first + job));
      await seed.press("Enter");
      await page.getByRole("button", { name: "Run", exact: true }).click();
      await expect(state).not.toContainText("completed in");
      await expect(state).toContainText("completed in", { timeout: 45_000 });
    }
    await close();
    for (let count = 0; count < documents; count++) {
      await openTemplate(page, "ControlNet and LoRA");
      await close();
    }
  }

  async function close(): Promise<void> {
    await page.keyboard.press("Escape");
    await page.keyboard.press("Alt+w");
    const sure = page.getByRole("dialog").getByRole("button", { name: /close|discard|without/i });
    await sure.click({ timeout: 1000 }).catch(() => {});
    await expect(page.locator(".tab")).toHaveCount(0);
  }

  await use(24, 24, 1000); // more than the page keeps: 8 ended jobs, 20 closed documents
  const before = await held(page, session);
  await use(JOBS, OPENED, 2000);
  const after = await held(page, session);
  console.log(JSON.stringify({ jobs: JOBS, opened: OPENED, before, after }));
  expect(after.heap / before.heap - 1).toBeLessThan(GROWTH);
  expect(after.listeners).toBeLessThanOrEqual(before.listeners + 5);
  expect(after.nodes).toBeLessThanOrEqual(before.nodes * (1 + GROWTH));
  expect(after.blobs).toBeLessThanOrEqual(before.blobs);
});
