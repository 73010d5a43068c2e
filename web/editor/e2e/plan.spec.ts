/** Plans over the graph, against a real `katz serve`. */
import { expect, type Page, type Response } from "@playwright/test";
import { node, openTemplate, runToEnd, test } from "./steps";

/** What the server answered to the page's last question for a plan. */
function watchPlan(page: Page): { readonly last: () => Promise<Record<string, any>> } {
  let answer: Response | undefined;
  page.on("response", (response) => {
    if (response.url().endsWith("/katz/plan") && response.ok()) answer = response;
  });
  return {
    last: async () => {
      await expect.poll(() => answer !== undefined).toBe(true);
      return (await answer?.json()).plans[0];
    },
  };
}

async function openStep(page: Page): Promise<void> {
  await page.locator(".card").getByRole("button", { name: "Open the step" }).click();
  await expect(page.getByRole("region", { name: "opened step" })).toBeVisible();
}

for (const title of ["ControlNet and LoRA", "Denoising loop", "Deep blocks every other step"])
  test(`P0.34 P0.35 P0.37 ${title}: planned before a run, and each part of it is drawn once`, async ({
    page,
  }) => {
    const told = watchPlan(page);
    await openTemplate(page, title);
    await expect(page.locator(".card .strip")).toBeVisible();
    const plan = await told.last();
    await openStep(page);
    const region = page.getByRole("region", { name: "opened step" });
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
  });

test("P0.34 a region drawn by hand has its marks at the real nodes; E hides them", async ({
  page,
}) => {
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

test("P0.37 an edit plans anew, and the newest one counts", async ({ page }) => {
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

test("P0.36 P0.38 after a run measured spans stand below predicted ones, after a reload too", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await node(page, "5").getByLabel("seed", { exact: true }).fill("987654"); // not in the cache
  await node(page, "5").getByLabel("seed", { exact: true }).press("Enter");
  await runToEnd(page);
  await page.keyboard.press("Escape");
  await page.keyboard.press("Shift+E");
  const panel = page.getByRole("complementary", { name: "plan" });
  const check = async () => {
    await expect(panel.getByRole("img", { name: /predicted and measured/ })).toBeVisible();
    expect(await panel.locator(".span.measured").count()).toBeGreaterThan(1);
    await expect(panel.locator(".segments tr").first()).toContainText(/\d ms.*\d ms/);
  };
  await check();
  await expect(panel).toContainText("Bound by");
  await page.waitForTimeout(800); // until the tabs are kept
  await page.reload();
  await expect(page.locator(".card").first()).toBeVisible();
  await page.keyboard.press("Shift+E");
  await check();
});
