/** Work with images, against a real `katz serve`. */
import { readFileSync } from "node:fs";
import { expect } from "@playwright/test";
import { act, node, openTemplate, runToEnd, test } from "./steps";

test("P1.09 two images are compared by a slider, by their difference, and by their settings", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  const prefix = node(page, "91").getByLabel("filename_prefix");
  await prefix.fill("compared"); // jobs of other tests may still write images
  await prefix.press("Enter");
  const cfg = node(page, "5").getByLabel("cfg");
  for (const value of ["4", "7.5"]) {
    await cfg.fill(value);
    await cfg.press("Enter");
    await runToEnd(page);
  }
  await page.getByRole("main").press("Shift+G");
  const pictures = page.locator('.gallery li > button:not(.star):has(img[alt*="compared"])');
  await pictures.nth(1).click();
  await expect(pictures.nth(1)).toHaveClass("picked");
  await pictures.nth(0).click();
  const dialog = page.getByRole("dialog", { name: "Compare" });
  await expect(dialog.locator(".behind img")).toHaveCount(2);
  const slider = dialog.getByRole("slider");
  await slider.focus();
  await page.keyboard.press("Home");
  await expect(dialog.locator(".behind img").nth(1)).toHaveCSS(
    "clip-path",
    /inset\(0(px|%)?( 0(px|%)?)*\)/,
  );
  await page.keyboard.press("PageUp");
  const differing = dialog.getByRole("table", { name: "settings that differ" }).getByRole("row");
  await expect(differing.filter({ hasText: "cfg" }).getByRole("cell")).toHaveText(["4", "7.5"]);
  await dialog.getByRole("button", { name: "difference" }).click();
  await expect(dialog.locator("figcaption")).toContainText(/% of the pixels differ, by \d+ of 255/);
  await expect(dialog.getByRole("img", { name: "difference" })).toHaveAttribute("width", "128");
  await page.keyboard.press("Escape");
  await expect(dialog).toHaveCount(0);
  await pictures.nth(0).click();
  await page.getByRole("button", { name: "Compare with previous one" }).click();
  await expect(differing.filter({ hasText: "cfg" }).getByRole("cell")).toHaveText(["4", "7.5"]);
});

test("P1.25 the graph and the timeline are saved as images, the run as a trace", async ({
  page,
}) => {
  await openTemplate(page, "ControlNet and LoRA");
  await node(page, "5")
    .getByLabel("cfg")
    .fill(String(3 + Math.random())); // not cached
  await runToEnd(page);
  await expect(page.locator(".card .strip")).toBeVisible();
  const saved = async (title: string) => {
    const saving = page.waitForEvent("download");
    await page.keyboard.press("Control+k");
    await page.getByRole("combobox", { name: "All actions" }).fill(title);
    await page.keyboard.press("Enter");
    const file = await saving;
    await file.saveAs(`test-results/saved/${file.suggestedFilename()}`);
    return readFileSync(await file.path());
  };
  const graph = (await saved("picture of the graph, SVG")).toString();
  for (const id of ["KSampler", "a large blue star"]) expect(graph).toContain(id);
  const cards = await page.locator(".card").count();
  expect(graph.match(/font-weight="600"/g)).toHaveLength(cards);
  const timeline = (await saved("picture of the timeline, SVG")).toString();
  expect(timeline).toContain("cpu:0 → cpu:1");
  for (const of of ["graph", "timeline"]) {
    const png = await saved(`picture of the ${of}, PNG`);
    expect(png.subarray(1, 4).toString()).toBe("PNG");
    expect(png.readUInt32BE(16)).toBeGreaterThan(1_000);
  }
  const { traceEvents } = JSON.parse((await saved("trace of the run")).toString());
  const threads = traceEvents.filter((event: any) => event.name === "thread_name");
  expect(threads.map((event: any) => event.args.name)).toContain("cpu:0");
  const spans = traceEvents.filter((event: any) => event.ph === "X");
  expect(spans.length).toBeGreaterThan(20);
  for (const { ts, dur } of spans) expect(Math.min(ts, dur)).toBeGreaterThanOrEqual(0);
});

test("P1.21 images are starred, deleted and restored in bulk, and dragged to nodes and out of the page", async ({
  page,
}) => {
  await openTemplate(page, "Image to image");
  const buffer = await (await page.request.get("/templates/txt2img-1.webp")).body();
  for (const name of ["first.webp", "second.webp", "third.webp"])
    await page.request.post("/upload/image", {
      multipart: {
        image: { name, mimeType: "image/webp", buffer: Buffer.from(buffer) },
        subfolder: "drag",
      },
    });
  await page.locator("main.canvas").press("g");
  await page.getByRole("button", { name: "Uploads" }).click();
  const gallery = page.getByRole("complementary", { name: "gallery" });
  const tile = (name: string) =>
    gallery.locator("li", { has: page.getByAltText(`drag/${name}.webp`) });
  const picture = (name: string) => tile(name).getByRole("button").first();
  // star an image by its key, and show only starred ones
  await picture("second").focus();
  await page.keyboard.press("s");
  await expect(tile("second").getByLabel(/^star/)).toHaveAttribute("aria-pressed", "true");
  await gallery.getByRole("button", { name: "Starred" }).click();
  await expect(gallery.getByRole("listitem")).toHaveCount(1);
  await gallery.getByRole("button", { name: "Starred" }).click();
  // drag onto a loader node, and onto the canvas
  const loader = page.locator(".card", { hasText: "LoadImage" }).first();
  await picture("first").dragTo(loader.locator(".card-title"));
  await expect(loader.locator(".thumbnail")).toHaveAttribute("alt", "drag/first.webp");
  const cards = await page.locator(".card").count();
  for (const name of ["second", "third"]) await tile(name).getByRole("checkbox").check();
  await picture("third").dragTo(page.locator("main.canvas"), {
    targetPosition: { x: 300, y: 600 },
  });
  await expect(page.locator(".card")).toHaveCount(cards + 2);
  await expect(page.getByAltText("drag/second.webp").and(page.locator(".card *"))).toBeVisible();
  const carried = await picture("first").evaluate((button) => {
    const dataTransfer = new DataTransfer();
    button.dispatchEvent(new DragEvent("dragstart", { bubbles: true, dataTransfer }));
    return dataTransfer.getData("DownloadURL");
  });
  expect(carried).toMatch(/^image\/webp:first\.webp:http.*view\?filename=drag%2Ffirst\.webp/);
  // move all marked images to the trash and back
  const marked = gallery.getByRole("group", { name: "marked pictures" });
  await expect(marked).toContainText("2 marked");
  await marked.getByRole("button", { name: "Delete" }).click();
  await expect(tile("third")).toHaveCount(0);
  expect((await page.request.get("/view?filename=drag/third.webp&type=input")).status()).toBe(404);
  await gallery.getByRole("button", { name: "Put back" }).click();
  await expect(tile("third")).toBeVisible();
  await picture("third").focus();
  await page.keyboard.press("Delete");
  await expect(tile("third")).toHaveCount(0);
  await act(page, "Starred pictures");
  await expect(tile("second")).toBeVisible();
  await expect(tile("first")).toHaveCount(0);
});
