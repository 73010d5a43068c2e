/** Expansion of a sampler into the nodes of its step, against a real `katz serve`. */
import { expect } from "@playwright/test";
import { act, downloaded, node, openTemplate, runToEnd, test } from "./steps";

test("P1.15 a sampler is replaced by its step nodes in one undo step, and they render", async ({
  page,
}) => {
  await openTemplate(page, "ControlNet and LoRA");
  const before = await downloaded(page);
  await node(page, "5").locator(".card-title").click();
  await page.keyboard.press("Alt+Enter");
  const begin = page.locator(".card", { hasText: "StepBegin" });
  await expect(begin).toHaveCount(1);
  await expect(node(page, "5")).toHaveCount(0);
  const after = await downloaded(page);
  const types = after.nodes.map(({ type }: { type: string }) => type);
  expect(types).not.toContain("ControlNetApplyAdvanced"); // the step contains the ControlNet
  expect(types.filter((type: string) => type === "ControlNet")).toHaveLength(2);
  expect(types).toEqual(expect.arrayContaining(["UNetEncoder", "CFGCombine", "StepEnd"]));
  expect(after.groups.at(-1).title).toBe("KSampler");
  await runToEnd(page);
  await expect(node(page, "91").locator(".result img")).toHaveCount(1);
  await page.getByRole("main").press("Control+z");
  await expect(node(page, "5")).toHaveCount(1);
  expect(await downloaded(page)).toEqual(before);
});

test("P1.15 a node that is not a sampler stays, and a message says why", async ({
  page,
  troubles,
}) => {
  await openTemplate(page, "Text to image");
  const before = await downloaded(page);
  await node(page, "90").locator(".card-title").click();
  await act(page, "Expand the sampler into step nodes");
  await expect(page.getByText("is not a sampler, so it has no step")).toBeVisible();
  expect(await downloaded(page)).toEqual(before);
  troubles.length = 0; // the browser logs the refusal
});
