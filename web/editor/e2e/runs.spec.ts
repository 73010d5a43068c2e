/** What helps with runs, against a real `katz serve`. */
import { expect } from "@playwright/test";
import { node, openTemplate, runToEnd, test } from "./steps";

test("P1.14 nodes are coloured by what they took, the critical path is marked; idle gaps say what they wait for", async ({
  page,
}) => {
  await openTemplate(page, "ControlNet and LoRA");
  await node(page, "5")
    .getByLabel("cfg")
    .fill(String(3 + Math.random())); // not run before
  await runToEnd(page);
  await page.getByRole("main").press("h");
  const heat = node(page, "5").locator(".heat");
  await expect(heat).toHaveClass(/critical/);
  await expect(heat).toContainText(/ s · \d+ % · critical path/);
  const opacity = async (id: string) =>
    Number(
      await node(page, id)
        .locator(".heat i")
        .evaluate((tint) => getComputedStyle(tint).opacity),
    );
  expect(await opacity("5")).toBeGreaterThan(await opacity("4"));
  await expect(page.locator(".react-flow__edge-path.critical").first()).toBeAttached();
  await expect(page.getByRole("note", { name: "heat" })).toContainText("the critical path");
  await page.keyboard.press("Shift+E");
  await expect(page.locator(".idle-gaps li").first()).toContainText(/cpu:\d idle .*/);
  await expect(page.locator(".timeline .idle").first()).toBeAttached();
  await page.screenshot({ path: "test-results/heat.png" });
  await page.getByRole("main").press("h");
  await expect(page.locator(".heat")).toHaveCount(0);
});
