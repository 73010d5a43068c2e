/** Earlier versions of saved files, against a real `katz serve`. */
import { expect } from "@playwright/test";
import { act, downloaded, node, openTemplate, test } from "./steps";

test("P1.12 saving stores the old version: changes are listed, and restored in one step", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await page.keyboard.press("Alt+v");
  const dialog = page.getByRole("dialog", { name: "Earlier versions" });
  await expect(dialog).toContainText("keeps the version it replaces");
  await page.keyboard.press("Escape");

  await page.keyboard.press("Control+s");
  await page.getByLabel("Name; a / makes a folder").fill("kept/versions");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("alert")).toContainText("saved as kept/versions.json");
  const first = await downloaded(page);
  const steps = node(page, "5").getByLabel("steps", { exact: true });
  await steps.fill("7");
  await steps.press("Enter");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+s");
  await page.keyboard.press("Control+s"); // no changes: no version
  await page.keyboard.press("Alt+v");
  const versions = dialog.getByRole("list", { name: "versions" }).getByRole("button");
  await expect(versions).toHaveCount(1);
  await versions.click();
  const told = dialog.getByRole("region", { name: "changes" });
  await expect(told.getByRole("listitem")).toHaveText(["≠ KSampler #5steps: 20 → 7"]);
  await told.getByRole("button", { name: "Restore" }).click();
  await expect(steps).toHaveValue("20");
  expect((await downloaded(page)).nodes).toEqual(first.nodes);
  await act(page, "undo");
  await expect(steps).toHaveValue("7");
  // versions follow a renamed file
  await page.keyboard.press("Escape");
  await page.keyboard.press("w");
  const panel = page.getByRole("complementary", { name: "saved workflows" });
  await panel.getByRole("button", { name: "rename" }).first().click();
  await panel.getByLabel("new name").fill("kept/renamed");
  await panel.getByLabel("new name").press("Enter");
  await expect(page.locator(".tab.active")).toContainText("renamed");
  await page.keyboard.press("Alt+v");
  await expect(versions).toHaveCount(1);
});
