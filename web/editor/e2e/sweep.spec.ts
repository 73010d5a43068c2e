/** Sweeps over values of fields, against a real `katz serve`. */
import { expect } from "@playwright/test";
import { downloaded, node, openTemplate, test } from "./steps";

test("P1.10 lists of field values become a grid of runs; their number is shown first", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  const before = await downloaded(page);
  await node(page, "5").locator('[data-widget="steps"]').hover();
  await page.keyboard.press("Alt+g");
  const sweep = page.getByRole("dialog", { name: "Sweep" });
  const another = sweep.getByRole("combobox", { name: "Another field" });
  const cfg = await another.locator("option", { hasText: /#5: cfg$/ }).getAttribute("value");
  await another.selectOption(cfg);
  await sweep.getByRole("textbox").nth(1).fill("1\n2*2\nmuch");
  await expect(sweep).toContainText("not a value: much");
  await sweep
    .getByRole("textbox")
    .first()
    .fill(Array.from({ length: 25 }, (_, at) => at + 1).join("\n"));
  await expect(sweep.getByRole("status")).toContainText("50 runs of at most 48");
  await expect(sweep.getByRole("button", { name: "Run 50" })).toBeDisabled();
  await sweep.getByRole("textbox").first().fill("1");
  await sweep.getByRole("button", { name: "Run 2" }).click();
  await expect(sweep.getByRole("columnheader")).toHaveText(["1", "4"]);
  await expect(sweep.getByRole("rowheader")).toHaveText(["1"]);
  await expect(sweep.locator("td img")).toHaveCount(2, { timeout: 45_000 });
  await page.keyboard.press("Escape");
  await expect(sweep).toHaveCount(0);
  expect(await downloaded(page)).toEqual(before);
});
