/** Subgraphs, against a real `katz serve`. */
import { expect } from "@playwright/test";
import { downloaded, node, openTemplate, runToEnd, test } from "./steps";

test("P1.03 nodes become a subgraph that runs as before, promotes an inner field, and is unpacked", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  const before = await downloaded(page);
  await runToEnd(page);
  for (const id of ["2", "3", "5"])
    await node(page, id)
      .locator(".card-title")
      .click({ modifiers: ["Shift"] });
  await page.keyboard.press("Control+Shift+E");
  const made = page.locator(".card.selected");
  await expect(made).toContainText("New Subgraph");
  await made.getByRole("button", { name: "Open the subgraph" }).click();
  const steps = page.locator('.card [data-widget="steps"]');
  await steps.hover();
  await page.keyboard.press("Alt+o");
  await page.keyboard.press("Escape");
  await expect(page.locator(".card").getByLabel("steps")).toHaveValue("20");
  const doc = await downloaded(page);
  expect(doc.nodes).toHaveLength(before.nodes.length - 2);
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page.locator(".card .badge.cached").first()).toBeVisible();
  await expect(page.locator(".card .badge.done")).toHaveCount(0);
  await page.locator(".card", { hasText: "New Subgraph" }).locator(".card-title").click();
  await page.keyboard.press("Alt+Shift+E");
  await expect(page.locator(".card")).toHaveCount(before.nodes.length);
  expect((await downloaded(page)).links).toHaveLength(before.links.length);
  for (const step of ["unpack a subgraph", "show steps outside", "make a subgraph"]) {
    await expect(page.getByRole("button", { name: "Undo" })).toHaveAttribute(
      "title",
      new RegExp(`: ${step} `),
    );
    await page.keyboard.press("Control+z");
  }
});
