/** Plans for other setups, compared side by side, and a job that uses one. */
import { expect } from "@playwright/test";
import { openTemplate, test } from "./steps";

test("P1.13 what if: plans with other batching or more devices are compared; one is run", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await page.getByRole("main").press("Shift+E");
  const panel = page.getByRole("complementary", { name: "plan" });
  await panel.getByText("What if", { exact: true }).click();
  const form = panel.getByRole("form", { name: "What if" });
  const submit = form.getByRole("button", { name: "Plan this setup" });
  await expect(submit).toBeDisabled();
  const table = panel.getByRole("table", { name: "plans side by side" });
  await form.getByLabel("equal calls").selectOption("one per branch");
  await submit.click();
  const apart = table.getByRole("row", { name: /one call per branch/ });
  await expect(
    apart.getByRole("button", { name: "one call per branch", exact: true }),
  ).toHaveAttribute("aria-pressed", "true");
  await expect(apart).toContainText("%");

  await form.getByLabel("equal calls").selectOption("as for jobs");
  await form.getByLabel("like cpu:0").fill("3");
  await form.getByLabel("like cpu:1").fill("0");
  await form.getByLabel("links of").fill("fast");
  await submit.click();
  const refused = table.getByRole("row", { name: /links of fast/ });
  await expect(refused).toContainText("expected GBPS or GBPS,MS");
  await form.getByLabel("links of").fill("100,0.01");
  await submit.click();
  const three = table.getByRole("row", { name: /cpu:0 × 3, links of 100,0.01/ });
  const legend = page.getByRole("note", { name: "devices of the plan" });
  await expect(legend).toContainText("cpu:0+2");
  await expect(three.getByRole("button", { name: "Run this setup" })).toBeDisabled();
  await table.getByRole("button", { name: "as jobs run" }).click();
  await expect(legend).not.toContainText("cpu:0+2");

  const queued = page.waitForRequest((request) => request.url().endsWith("/prompt"));
  await apart.getByRole("button", { name: "Run this setup" }).click();
  expect((await queued).postDataJSON().extra_data).toEqual({ katz: { batching: false } });
  await expect(page.locator('.card img[alt*="png"]').first()).toBeVisible({ timeout: 45_000 });
  await refused.getByRole("button", { name: /^remove/ }).click();
  await expect(refused).toHaveCount(0);
});
