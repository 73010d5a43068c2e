/** Tools for runs, against a real `katz serve`. */
import { expect, type Page } from "@playwright/test";
import { node, openTemplate, runToEnd, test } from "./steps";

test("P1.14 nodes are coloured by their time, the critical path is marked, and idle gaps name their causes", async ({
  page,
}) => {
  await openTemplate(page, "ControlNet and LoRA");
  await node(page, "5")
    .getByLabel("cfg")
    .fill(String(3 + Math.random())); // not cached
  await runToEnd(page);
  await page.getByRole("main").press("h");
  const heat = node(page, "5").locator(".heat");
  await expect(heat).toHaveClass(/critical/);
  await expect(heat).toContainText(/\d m?s · \d+ % · critical path/);
  const opacity = async (id: string) =>
    Number(
      await node(page, id)
        .locator(".heat i")
        .evaluate((tint) => getComputedStyle(tint).opacity),
    );
  expect(await opacity("5")).toBeGreaterThan(await opacity("4"));
  await expect(page.locator(".react-flow__edge-path.critical").first()).toBeAttached();
  await expect(page.getByRole("note", { name: "heat" })).toContainText("critical path");
  await page.keyboard.press("Shift+E");
  await expect(page.locator(".idle-gaps li").first()).toContainText(/cpu:\d idle .*/);
  await expect(page.locator(".timeline .idle").first()).toBeAttached();
  await page.getByRole("main").press("h");
  await expect(page.locator(".heat")).toHaveCount(0);
});

test("P1.12 all undo steps are listed by name; a click undoes or redoes several", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  const [cfg, steps] = [node(page, "5").getByLabel("cfg"), node(page, "5").getByLabel("steps")];
  for (const [field, value] of [
    [cfg, "5"],
    [steps, "12"],
    [cfg, "6"],
  ] as const) {
    await field.fill(value);
    await field.press("Enter");
  }
  await page.getByRole("main").press("u");
  const list = page.getByRole("complementary", { name: "undo history" });
  await expect(list.getByRole("button")).toHaveText(["open", "set cfg", "set steps", "set cfg"]);
  await list.getByRole("button").nth(1).click();
  await expect(cfg).toHaveValue("5");
  await expect(steps).toHaveValue("20");
  await expect(list.locator('[aria-current="step"]')).toHaveText("set cfg");
  await expect(list.locator(".undone")).toHaveText(["set steps (undone)", "set cfg (undone)"]);
  await list.getByRole("button").last().click();
  await expect(cfg).toHaveValue("6");
  await expect(steps).toHaveValue("12");
  await list.getByRole("button").first().click();
  await expect(page.getByRole("button", { name: "Undo", exact: true })).toBeDisabled();
});

test("P1.11 with run on change, the newest edit runs with the same seeds; moving a node runs nothing", async ({
  page,
}) => {
  const sent: any[] = [];
  page.on("request", (request) => {
    if (/\/prompt$/.test(request.url())) sent.push(request.postDataJSON().prompt);
  });
  const cancelled: string[] = [];
  page.on("request", (request) => {
    if (request.url().endsWith("/api/jobs/cancel"))
      cancelled.push(...request.postDataJSON().job_ids);
  });
  const cfgOf = (doc: any) => doc.nodes.find(({ id }: any) => id === 5).widgets_values;
  await openTemplate(page, "Text to image");
  await node(page, "5").getByLabel("next run").selectOption("random");
  const cfg = node(page, "5").getByLabel("cfg");
  await page.getByRole("main").press("Alt+r");
  const toggle = page.getByRole("button", { name: "Run on change" });
  await expect(toggle).toHaveAttribute("aria-pressed", "true");
  await page.waitForTimeout(1_000);
  expect(sent).toEqual([]); // nothing has changed
  const steps = node(page, "5").getByLabel("steps");
  await steps.fill("400"); // long enough for the next edit to arrive during the run
  await steps.press("Enter");
  await expect.poll(() => sent.length).toBe(1);
  await expect(page.locator(".toolbar .state")).toContainText("running");
  await steps.fill("5");
  await steps.press("Enter");
  await expect.poll(() => sent.length).toBe(2);
  expect(cancelled).toHaveLength(1);
  await expect(page.locator(".toolbar .state")).toContainText("completed in", { timeout: 45_000 });
  expect(cfgOf(sent[1])[0]).toBe(cfgOf(sent[0])[0]);
  await node(page, "5").locator(".card-title").click();
  await page.getByRole("main").press("Control+ArrowRight");
  await cfg.fill("x"); // not a number
  await cfg.press("Enter");
  await page.waitForTimeout(1_500);
  expect(sent).toHaveLength(2);
  await page.getByRole("main").press("Control+Enter"); // changes the seed, which does not count as an edit
  await expect.poll(() => sent.length).toBe(3);
  await page.waitForTimeout(1_500);
  expect(sent).toHaveLength(3);
  expect(cfgOf(sent[2])[0]).not.toBe(cfgOf(sent[1])[0]);
  await page.getByRole("main").press("Alt+r");
  await steps.fill("6");
  await steps.press("Enter");
  await page.waitForTimeout(1_500);
  expect(sent).toHaveLength(3);
});

const LONG = 900; // evaluations: such a run lasts until it is stopped
const SLOW = { timeout: 60_000 }; // two samplers are compiled before the first evaluation

/** Runs the sampler of "Text to image" with another number of steps. */
async function runWith(page: Page, steps: number): Promise<void> {
  const field = node(page, "5").getByLabel("steps");
  await field.fill(String(steps));
  await field.press("Enter");
  await page.getByRole("button", { name: "Run", exact: true }).click();
}

const state = (page: Page) => page.locator(".toolbar .state");
const stop = (page: Page) => page.getByRole("button", { name: "Stop", exact: true }).click();

test("P0.28 Stop cancels the running job, and the waiting jobs run [defect E1]", async ({
  page,
}) => {
  const sent: string[] = [];
  const cancelled: string[] = [];
  page.on("request", (request) => {
    if (request.url().endsWith("/prompt")) sent.push(request.postDataJSON().prompt_id);
    if (request.url().endsWith("/api/jobs/cancel"))
      cancelled.push(...request.postDataJSON().job_ids);
  });
  await openTemplate(page, "Text to image");
  await runWith(page, LONG);
  await expect(state(page)).toContainText("running");
  await runWith(page, 3);
  await runWith(page, 4);
  await expect(state(page)).toContainText(/running.*, 2 more queued/);
  await stop(page);
  await expect(page.getByRole("button", { name: "queue 0" })).toBeVisible();
  await expect(page.locator(".card .result img")).toBeVisible(); // from a job that had waited
  expect(sent).toHaveLength(3);
  expect(cancelled).toEqual(sent.slice(0, 1));
});

test("P0.29 the canvas, the tab and the title show the running job while others wait [defect E2]", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await runWith(page, LONG);
  await runWith(page, LONG + 1);
  await expect(page.getByRole("button", { name: "queue 2" })).toBeVisible();
  await expect(node(page, "5")).toHaveClass(/running/);
  await expect(node(page, "5").getByLabel("evaluations")).toHaveAttribute(
    "max",
    String(LONG),
    SLOW,
  );
  await expect(node(page, "5").getByRole("img", { name: "preview" })).toBeVisible();
  await expect(page.locator(".tab .dot")).toHaveClass(/running/);
  await expect(page).toHaveTitle(/^\d+ % /);
  await stop(page);
  await expect(node(page, "5").getByLabel("evaluations")).toHaveAttribute("max", String(LONG + 1));
  await stop(page);
  await expect(state(page)).toContainText("cancelled");
});

test("P0.29 nodes keep their results until a later run replaces them [defect E3]", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await runWith(page, 3);
  await expect(state(page)).toContainText("completed in");
  const picture = page.locator(".card .result img");
  const first = (await picture.getAttribute("alt")) ?? "";
  await page.request.post("/katz/queue/pause", { data: {} });
  await runWith(page, LONG);
  await expect(state(page)).toContainText("waiting");
  await expect(picture).toHaveAttribute("alt", first);
  await page.request.post("/katz/queue/resume", { data: {} });
  await expect(node(page, "5").getByLabel("evaluations")).toBeVisible();
  await expect(picture).toHaveAttribute("alt", first);
  await stop(page);
  await expect(state(page)).toContainText("cancelled");
  await expect(picture).toHaveAttribute("alt", first);
  await runWith(page, 4);
  await expect(state(page)).toContainText("completed in");
  await expect(picture).not.toHaveAttribute("alt", first);
  await expect(picture).toHaveCount(1);
});
