/** Whole tasks by keyboard alone, against a real `katz serve`. */
import { expect, type Page } from "@playwright/test";
import { downloaded, node, openTemplate, test } from "./steps";

async function choose(page: Page, words: string): Promise<void> {
  const field = page.getByRole("dialog").getByRole("combobox");
  await field.waitFor();
  await page.keyboard.type(words);
  await expect(page.getByRole("dialog").getByRole("option").first()).toBeVisible(); // node types may still be loading
  await page.keyboard.press("Enter");
}

/** Adds a node and links its inputs; each socket is paired with the search for its other end. */
async function add(page: Page, name: string, links: readonly (readonly [string, string])[] = []) {
  const before = await page.locator(".card").count();
  await page.keyboard.press("Shift+A");
  await choose(page, name);
  await expect(page.locator(".card")).toHaveCount(before + 1);
  await expect(page.locator(".card").last()).toHaveClass(/selected/);
  for (const [socket, other] of links) {
    await page.keyboard.press("c");
    await choose(page, `← ${socket}`);
    await expect(page.getByRole("dialog")).toHaveAccessibleName(new RegExp(`Connect ← ${socket}`));
    await choose(page, other);
    await expect(page.getByRole("dialog")).toHaveCount(0);
  }
}

test("P0.40 text to image with a ControlNet is built, run, inspected and saved by keyboard alone", async ({
  page,
}) => {
  await add(page, "CheckpointLoaderSimple");
  await add(page, "CLIPTextEncode", [["clip", "checkpoint clip"]]);
  await page.keyboard.press("Enter"); // focuses its field
  await page.keyboard.type("a red star");
  await page.keyboard.press("Escape");
  await add(page, "CLIPTextEncode", [["clip", "checkpoint clip"]]);
  await add(page, "EmptyLatentImage");
  await page.keyboard.press("Enter");
  for (const size of ["128", "128"]) {
    await page.keyboard.press("Control+a");
    await page.keyboard.type(size);
    await page.keyboard.press("Tab");
  }
  await page.keyboard.press("Escape");
  await add(page, "ControlNetLoader");
  await page.keyboard.press("Enter");
  await page.keyboard.type("katz-mini-edges");
  await page.keyboard.press("Escape");
  await add(page, "LoadImage");
  await add(page, "ControlNetApplyAdvanced", [
    ["positive", "#2 conditioning"],
    ["negative", "#3 conditioning"],
    ["control_net", "control_net"],
    ["image", "#6 image"],
  ]);
  await add(page, "KSampler", [
    ["model", "#1 model"],
    ["positive", "#7 positive"],
    ["negative", "#7 negative"],
    ["latent_image", "#4"],
  ]);
  await add(page, "VAEDecode", [
    ["samples", "#8"],
    ["vae", "#1"],
  ]);
  await add(page, "SaveImage", [["images", "#9"]]);
  await page.keyboard.press("l");
  const { links, nodes } = await downloaded(page);
  expect([nodes.length, links.length]).toEqual([10, 13]);

  // arrow keys follow links between nodes, and the page announces the selected node
  await page.keyboard.press("Alt+ArrowLeft");
  await page.keyboard.press("Alt+ArrowLeft");
  await expect(page.getByRole("status", { name: "announcements" })).toContainText("KSampler 8");
  await page.keyboard.press("Control+Enter");
  await expect(page.locator(".toolbar .state")).toContainText("completed in", { timeout: 60_000 });
  await expect(node(page, "10").locator(".result img")).toBeVisible();
  await page.keyboard.press("Shift+Enter");
  const step = page.getByRole("region", { name: "opened step" });
  await expect(step.getByText("ControlNet 1").first()).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(step).toHaveCount(0);
  await page.keyboard.press("Shift+E");
  await expect(page.getByRole("img", { name: /timeline of two evaluations/ })).toBeVisible();
  await page.keyboard.press("Control+s");
  await page.keyboard.type("by keyboard");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("alert")).toContainText("saved as by keyboard.json");
});

test("P0.11 a link gets a reroute, which is dragged, saved and deleted", async ({ page }) => {
  await openTemplate(page, "Text to image");
  const start = await downloaded(page);
  const link = page.locator(".react-flow__edge").first();
  const place = await link
    .locator("path")
    .first()
    .evaluate((path: SVGPathElement) => {
      const middle = path.getPointAtLength(path.getTotalLength() / 2);
      const at = middle.matrixTransform(path.getScreenCTM() ?? undefined);
      return { x: at.x, y: at.y };
    });
  await page.mouse.dblclick(place.x, place.y);
  const point = page.locator(".point");
  await expect(point).toHaveCount(1);
  await page.mouse.move(place.x, place.y);
  await page.mouse.down();
  await page.mouse.move(place.x + 20, place.y + 60, { steps: 5 });
  await page.mouse.up();
  const { extra } = await downloaded(page);
  expect(extra.reroutes).toHaveLength(1);
  expect(extra.linkExtensions).toEqual([{ id: start.links[0][0], parentId: 1 }]);
  const [x] = extra.reroutes[0].pos;
  await page.keyboard.press("Control+z");
  expect((await downloaded(page)).extra.reroutes[0].pos[0]).not.toBe(x);
  await point.click();
  await page.keyboard.press("Delete");
  await expect(point).toHaveCount(0);
  expect((await downloaded(page)).links).toEqual(start.links);
  await page.mouse.click(place.x, place.y); // the link itself
  await expect(link).toHaveClass(/selected/);
  await page.keyboard.press("Delete");
  expect((await downloaded(page)).links).toEqual(start.links.slice(1));
});
