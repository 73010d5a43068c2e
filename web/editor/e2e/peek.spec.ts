/** Previews of intermediate outputs, against a real `katz serve`. */
import { expect } from "@playwright/test";
import { downloaded, node, openTemplate, test } from "./steps";

test("P1.06 a node's output is previewed by a run up to that node; the document is unchanged", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  const before = await downloaded(page);
  await node(page, "1").locator(".card-title").click();
  await page.keyboard.press("Alt+p");
  await expect(page.getByRole("alert")).toContainText("no output of the selected node");
  await node(page, "5").locator(".card-title").click();
  await page.keyboard.press("Alt+p");
  const peek = node(page, "5").getByRole("region", { name: "peek at LATENT" });
  await expect(peek.locator("img")).toHaveCount(1, { timeout: 45_000 });
  await expect(page.locator(".result")).toHaveCount(1); // downstream nodes did not run
  expect(await downloaded(page)).toEqual(before);
  const steps = node(page, "5").getByLabel("steps");
  await steps.fill("3");
  await steps.press("Enter");
  await expect(peek).toContainText("from an earlier graph");
  await peek.getByRole("button", { name: "Close preview" }).click();
  await expect(peek).toHaveCount(0);
});
