/** Panels beside the graph, against a real `katz serve`. */
import { expect } from "@playwright/test";
import { act, test } from "./steps";

test("P1.24 packs tell what they bring and why one was left out; a node tells where it is from", async ({
  page,
}) => {
  await act(page, "Packs");
  const packs = page.getByRole("complementary", { name: "packs" });
  await expect(packs.getByRole("listitem").first()).toContainText("broken");
  await expect(packs.getByText(/a_module_that_nobody_has/)).toBeVisible();
  await expect(packs.getByText(/\/packs\/broken/)).toHaveCount(0); // no folder of the server's
  await packs.locator("summary", { hasText: "Katz Graph" }).click();
  await packs.getByRole("button", { name: "KSampler", exact: true }).click();
  await expect(page.locator(".card .name")).toHaveText("KSampler");
  await page.locator("main.canvas").focus();
  await page.keyboard.press("F1");
  await expect(page.getByRole("region", { name: "help" })).toContainText(
    "KSampler, from Katz Graph",
  );
  await page.getByRole("button", { name: "Packs", exact: true }).click();
  await expect(packs).toBeVisible();
});
