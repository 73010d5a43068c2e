/** Plans shown over the graph, against a real `katz serve`. */
import { readFileSync } from "node:fs";
import { expect, type Page, type Response } from "@playwright/test";
import { node, openTemplate, runToEnd, test, untilKept } from "./steps";

/** Returns the server's answer to the page's latest plan request. */
function watchPlan(page: Page): {
  readonly all: () => Promise<readonly Record<string, any>[]>;
  readonly last: () => Promise<Record<string, any>>;
} {
  let answer: Response | undefined;
  page.on("response", (response) => {
    if (response.url().endsWith("/katz/plan") && response.ok()) answer = response;
  });
  const all = async () => {
    await expect.poll(() => answer !== undefined).toBe(true);
    return (await answer?.json()).plans;
  };
  return { all, last: async () => (await all())[0] };
}

async function openStep(page: Page): Promise<void> {
  await page.locator(".card").getByRole("button", { name: "Show the step plan" }).click();
  await expect(page.getByRole("region", { name: "opened step" })).toBeVisible();
}

const SOME = ["ControlNet and LoRA", "Denoising loop", "Deep blocks every other step"];
const TITLES = process.env.KATZ_ALL === undefined ? SOME : titles();

/** Returns the titles of all templates in the index that the server serves. */
function titles(): readonly string[] {
  const index = new URL("../../../workflows/templates/index.json", import.meta.url);
  const groups: readonly { templates: readonly { title: string }[] }[] = JSON.parse(
    readFileSync(index, "utf8"),
  );
  return groups.flatMap(({ templates }) => templates.map(({ title }) => title));
}

/** Returns the left edge and width of each measured bar of two evaluations, scaled to 1,000. */
async function measuredBars(page: Page, job: string): Promise<readonly (readonly number[])[]> {
  const client = await page.evaluate(() => localStorage.getItem("katz.client"));
  const answer = await page.request.get(`/katz/jobs/${job}/report?client_id=${client}`);
  const { plans, timeline } = await answer.json();
  const { first, seconds } = (Object.values(plans)[0] as any).timeline;
  const spans = timeline
    .flatMap(({ segments }: any) => segments)
    .filter(({ evaluation }: any) => evaluation === first || evaluation === first + 1);
  const begin = Math.min(...spans.map(({ start }: any) => start));
  const ends = spans.map((span: any) => span.start - begin + span.seconds);
  const scale = 1000 / Math.max(seconds, ...ends);
  return spans.map((span: any) => [(span.start - begin) * scale, span.seconds * scale]);
}

for (const title of TITLES)
  test(`P0.34 P0.35 P0.37 ${title}: planned before a run, and each part of the plan is drawn once`, async ({
    page,
  }) => {
    const told = watchPlan(page);
    await openTemplate(page, title);
    await expect(page.locator(".card .strip").first()).toBeVisible();
    const plans = await told.all();
    await expect(page.locator(".card .strip")).toHaveCount(plans.length);
    for (const plan of plans) {
      const [sampler = ""] = plan.sampler.split(".");
      await node(page, sampler).getByRole("button", { name: "Show the step plan" }).click();
      const region = page.getByRole("region", { name: "opened step" });
      await expect(region).toBeVisible();
      const tabs = region.getByRole("tab");
      await expect(tabs).toHaveCount(plan.variants.length);
      for (const [number, variant] of plan.variants.entries()) {
        await tabs.nth(number).click();
        const once = plan.before.flatMap((call: any) => call.operations).length;
        const calls = variant.segments.flatMap((segment: any) => segment.calls);
        await expect(region.locator(".segment:not(.once)")).toHaveCount(variant.segments.length);
        await expect(region.locator(".operation")).toHaveCount(once + variant.operations.length);
        await expect(region.locator(".call")).toHaveCount(plan.before.length + calls.length);
        await expect(region.locator(".flow")).toHaveCount(
          plan.before_edges.length + variant.edges.length,
        );
        const stale = variant.edges.filter((edge: any) => edge.stale).length;
        await expect(region.locator(".flow.stale")).toHaveCount(stale);
      }
      await page.keyboard.press("Escape");
      await expect(region).toHaveCount(0);
    }
  });

test("P0.34 a loop drawn by hand has marks on its nodes; E hides them", async ({ page }) => {
  const told = watchPlan(page);
  await openTemplate(page, "Denoising loop");
  const plan = await told.last();
  const nodes = new Set(
    plan.variants[0].operations.map(
      (id: string) => plan.operations.find((one: any) => one.id === id).node,
    ),
  );
  nodes.delete(plan.sampler.split(".")[0]);
  await expect(page.locator(".card .mark")).toHaveCount(nodes.size);
  for (const id of nodes) await expect(node(page, String(id)).locator(".mark")).toBeVisible();
  await page.keyboard.press("e");
  await expect(page.locator(".card .mark")).toHaveCount(0);
});

test("P0.37 each edit requests a new plan, and the latest one is shown", async ({ page }) => {
  await openTemplate(page, "Text to image");
  const took = async () => {
    await page.keyboard.press("Escape");
    return page.getByRole("complementary", { name: "plan" }).locator("dd").first().textContent();
  };
  await page.getByRole("main").press("Shift+E");
  await expect(page.getByRole("complementary", { name: "plan" }).locator("dd")).not.toHaveCount(0);
  const before = await took();
  const steps = node(page, "5").getByLabel("steps");
  for (const count of ["60", "5", "200"]) {
    await steps.fill(count);
    await steps.press("Enter");
  }
  await openStep(page);
  await expect(page.getByRole("slider")).toHaveAttribute("max", "199");
  expect(await took()).not.toBe(before);
});

test("P0.36 P0.38 after a run, measured spans are drawn below predicted ones, also after a reload", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await node(page, "5").getByLabel("seed", { exact: true }).fill("987654"); // not cached
  await node(page, "5").getByLabel("seed", { exact: true }).press("Enter");
  const sent = page.waitForRequest((request) => request.url().endsWith("/prompt"));
  await runToEnd(page);
  const job = (await sent).postDataJSON().prompt_id;
  const reported = await measuredBars(page, job);
  expect(reported.length).toBeGreaterThan(1);
  await page.keyboard.press("Escape");
  await page.keyboard.press("Shift+E");
  const panel = page.getByRole("complementary", { name: "plan" });
  const check = async () => {
    await expect(panel.getByRole("img", { name: /predicted and measured/ })).toBeVisible();
    const drawn = panel.locator(".span.measured");
    await expect(drawn).toHaveCount(reported.length);
    for (const [number, [left = 0, width = 0]] of reported.entries()) {
      const bar = drawn.nth(number);
      expect(Number(await bar.getAttribute("x"))).toBeCloseTo(left, 1);
      const least = 1.5; // the minimum visible width
      expect(Number(await bar.getAttribute("width"))).toBeCloseTo(Math.max(width, least), 1);
    }
    await expect(panel.locator(".segments tr").first()).toContainText(/\d ms.*\d ms/);
  };
  await check();
  await expect(panel).toContainText("Bound by");
  await untilKept(page, job);
  await page.reload();
  await expect(page.locator(".card").first()).toBeVisible();
  await page.keyboard.press("Shift+E");
  await check();
});

test("P0.36 the timeline is zoomed, panned and navigated by keys; the graph highlights the selected node", async ({
  page,
}) => {
  const told = watchPlan(page);
  await openTemplate(page, "ControlNet and LoRA");
  const { timeline, sampler } = await told.last();
  await page.getByRole("main").press("Shift+E");
  const panel = page.getByRole("complementary", { name: "plan" });
  const axis = panel.getByRole("group", { name: /^spans/ });
  const caption = panel.locator(".timeline figcaption");
  const view = async () =>
    ((await axis.locator("svg").getAttribute("viewBox")) ?? "").split(" ").map(Number);
  const whole = await view();
  expect(whole.slice(0, 3).map((one) => Number(one.toFixed(6)))).toEqual([0, 0, 1000]);
  // the wheel scrolls the panel until the timeline has the focus
  const box = await axis.boundingBox();
  if (box === null) throw new Error("no timeline");
  await page.mouse.move(box.x + box.width / 4, box.y + 2);
  await page.mouse.wheel(0, -200);
  await page.waitForTimeout(100);
  expect(await view()).toEqual(whole);
  await page.mouse.down();
  await page.mouse.up();
  await page.mouse.move(box.x + box.width / 4, box.y + 2);
  await panel.evaluate((element) => element.scrollTo(0, 0));
  const place = await axis.boundingBox();
  if (place === null) throw new Error("no timeline");
  await page.mouse.move(place.x + place.width / 4, place.y + 2);
  await page.mouse.wheel(0, -400);
  await expect.poll(async () => (await view())[2]).toBeLessThan(500);
  const [left = 0, , width = 0] = await view();
  expect(left + width / 4).toBeCloseTo(250, -1); // stays under the pointer
  await page.mouse.down();
  await page.mouse.move(place.x, place.y + 2, { steps: 3 });
  await page.mouse.up();
  await expect.poll(async () => (await view())[0]).toBeGreaterThan(left + 50);
  // keys move between spans, scroll them into view, and describe each
  await axis.press("Home");
  await axis.press("ArrowDown");
  const { evaluation } = timeline.spans[0];
  await expect(caption).toContainText(`evaluation ${evaluation}`);
  await axis.press("End");
  await expect(caption).toContainText(`evaluation ${evaluation + 1}`);
  await expect(caption).toContainText("waited for");
  const [from = 0, , shown = 0] = await view();
  const at = Number(await axis.locator(".framed").getAttribute("x"));
  expect(at).toBeGreaterThanOrEqual(from);
  expect(at).toBeLessThanOrEqual(from + shown);
  const last = (await caption.textContent()) ?? "";
  await axis.press("Enter");
  const waited = /waited for (.*)$/.exec(last)?.[1] ?? "nothing";
  await expect(caption).toContainText(waited);
  await expect(node(page, sampler.split(".")[0])).toHaveClass(/pointed/);
  await axis.press(".");
  expect(await view()).toEqual(whole);
  await panel.getByRole("button", { name: "zoom in" }).click();
  expect((await view())[2]).toBeLessThan(1000);
  await panel.getByRole("button", { name: "whole" }).click();
  expect(await view()).toEqual(whole);
});

test("P0.38 P0.36 the critical chain is shown as text, in the timeline and in the opened step", async ({
  page,
}) => {
  const told = watchPlan(page);
  await openTemplate(page, "ControlNet and LoRA");
  const { timeline } = await told.last();
  const ends = timeline.spans.map(({ start, seconds }: any) => start + seconds);
  const chain: number[] = [ends.indexOf(Math.max(...ends))];
  while (timeline.spans[chain[0] ?? 0].after !== null)
    chain.unshift(timeline.spans[chain[0] ?? 0].after);
  await openStep(page);
  await page.keyboard.press("Shift+E");
  const panel = page.getByRole("complementary", { name: "plan" });
  const points = (await panel.locator(".chain").getAttribute("points")) ?? "";
  expect(points.split(" ")).toHaveLength(2 * chain.length);
  const own = chain.filter((at) => timeline.spans[at].evaluation === timeline.first + 1);
  await expect(panel.locator(".critical-chain li")).toHaveCount(own.length);
  const last = timeline.spans[own.at(-1) ?? 0];
  await expect(panel.locator(".critical-chain li").last()).toContainText(last.what);
  const region = page.getByRole("region", { name: "opened step" });
  expect(await region.locator(".operation.critical").count()).toBeGreaterThanOrEqual(1);
  expect(await region.locator(".flow.critical").count()).toBeGreaterThanOrEqual(1);
  // the timeline and the opened step highlight each other's operations
  const computed = own.find((at) => timeline.spans[at].stage !== "") ?? 0;
  await panel.locator(".span.predicted").nth(computed).hover();
  await expect(region.locator(".call.pointed")).toHaveCount(1);
  await region.locator(".operation.critical").first().hover();
  await expect(panel.locator(".framed")).toHaveCount(1);
});

test("P0.34 planned nodes have bars in their devices' colours, also when collapsed; a legend names devices", async ({
  page,
}) => {
  const told = watchPlan(page);
  await openTemplate(page, "Denoising loop");
  const plan = await told.last();
  const byNode = new Map<string, Set<string>>();
  for (const segment of plan.variants[0].segments)
    for (const id of segment.calls.flatMap((call: any) => call.operations)) {
      const at = plan.operations.find((one: any) => one.id === id).node;
      byNode.set(at, (byNode.get(at) ?? new Set()).add(segment.device));
    }
  await expect(page.locator(".device-bar")).toHaveCount(byNode.size);
  for (const [id, devices] of byNode) {
    const bar = node(page, id).locator(".device-bar");
    await expect(bar).toHaveAccessibleName(`computes on ${[...devices].join(", ")}`);
    await expect(bar.locator("i")).toHaveCount(devices.size);
    for (const device of devices)
      await expect(bar.locator(`.device-${plan.devices.indexOf(device)}`)).toHaveCount(1);
  }
  const legend = page.getByRole("note", { name: "devices of the plan" });
  await expect(legend.locator("span")).toHaveText(plan.devices);
  const [first = ""] = byNode.keys();
  await node(page, first).locator(".card-title .name").click();
  await page.keyboard.press("Alt+c");
  await expect(node(page, first).locator(".device-bar b")).toBeVisible();
  await page.keyboard.press("e");
  await expect(page.locator(".device-bar")).toHaveCount(0);
  await expect(legend).toHaveCount(0);
});
