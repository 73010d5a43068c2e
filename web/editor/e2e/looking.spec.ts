/** Navigation, tabs, the node library, themes and touch, against a real `katz serve`. */
import { expect, type Page } from "@playwright/test";
import { downloaded, node, openTemplate, test } from "./steps";

async function view(page: Page): Promise<{ x: number; y: number; zoom: number }> {
  const style = await page.locator(".canvas .react-flow__viewport").getAttribute("style");
  const [x = 0, y = 0, zoom = 1] = (style ?? "").match(/-?[\d.]+(?:e-?\d+)?/g)?.map(Number) ?? [];
  return { x, y, zoom };
}

test("P0.01 the canvas is panned by drag, Space and the middle button, and zoomed at the pointer", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  const start = await view(page);
  const drag = async (button: "left" | "middle") => {
    await page.mouse.move(700, 780);
    await page.mouse.down({ button });
    await page.mouse.move(760, 800, { steps: 3 });
    await page.mouse.up({ button });
  };
  await drag("left");
  await expect.poll(async () => (await view(page)).x).toBeCloseTo(start.x + 60, 0);
  await drag("middle");
  await expect.poll(async () => (await view(page)).x).toBeCloseTo(start.x + 120, 0);
  await page.keyboard.down("Space");
  await drag("left");
  await page.keyboard.up("Space");
  await expect.poll(async () => (await view(page)).x).toBeCloseTo(start.x + 180, 0);
  // the wheel zooms at the pointer, also over a field without focus
  const text = node(page, "2").getByRole("textbox");
  const before = await text.boundingBox();
  if (before === null) throw new Error("no field");
  const pointer = { x: before.x + 20, y: before.y + 20 };
  await page.mouse.move(pointer.x, pointer.y);
  const { zoom } = await view(page);
  await page.mouse.wheel(0, -240);
  await expect.poll(async () => (await view(page)).zoom).toBeGreaterThan(zoom);
  const scale = (await view(page)).zoom / zoom;
  const after = await text.boundingBox();
  expect((after?.x ?? 0) + 20 * scale).toBeCloseTo(pointer.x, -1);
  await page.keyboard.press("0");
  await expect.poll(async () => (await view(page)).zoom).toBeCloseTo(1, 5);
  await page.keyboard.press(".");
  await expect.poll(async () => (await view(page)).zoom).toBeLessThan(1);
});

test("P0.01 the overview shows the whole graph: dragging in it pans, the wheel zooms", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  const overview = await page.getByRole("img", { name: "overview of the graph" }).boundingBox();
  if (overview === null) throw new Error("it is not there");
  const start = await view(page);
  await page.mouse.move(overview.x + 100, overview.y + 75);
  await page.mouse.down();
  await page.mouse.move(overview.x + 110, overview.y + 75, { steps: 2 });
  await page.mouse.up();
  await expect.poll(async () => (await view(page)).x).toBeLessThan(start.x - 20);
  expect((await view(page)).y).toBeCloseTo(start.y, 0);
  await page.mouse.wheel(0, -240);
  await expect.poll(async () => (await view(page)).zoom).toBeGreaterThan(1.2 * start.zoom);
});

test("P0.03 the library has help and lasting favourites, and adds a node on a click", async ({
  page,
}) => {
  await page.keyboard.press("n");
  const library = page.getByRole("complementary", { name: "node types" });
  await library.getByLabel("filter node types").fill("ksampler");
  await library.getByRole("button", { name: "help for KSampler", exact: true }).click();
  await expect(library.locator(".help")).toContainText("latent_image");
  await library.getByRole("button", { name: "favourite KSampler", exact: true }).click();
  await library.getByRole("button", { name: "KSampler", exact: true }).click();
  await expect(page.locator(".card")).toHaveCount(1);
  await page.reload();
  await expect(page.getByText("connected", { exact: true })).toBeVisible();
  await page.keyboard.press("n");
  await library.locator("summary", { hasText: "favourites" }).waitFor();
  await expect(library.locator("details").first()).toContainText("KSampler");
  await library.getByRole("button", { name: "favourite KSampler" }).first().click();
});

test("P0.19 a run continues when its tab is closed; reopening the tab shows its result", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await page.keyboard.press("Alt+n");
  await page.locator(".tab").first().locator("button").first().click();
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(node(page, "5").locator(".badge")).toBeVisible({ timeout: 20_000 });
  await page.locator(".tab.active button").first().click({ button: "middle" });
  await expect(page.locator(".tab")).toHaveCount(1);
  await page.waitForTimeout(3_000);
  await page.keyboard.press("Alt+Shift+W");
  await expect(page.locator(".tab")).toHaveCount(2);
  await expect(page.locator(".toolbar .state")).toContainText("completed in", { timeout: 30_000 });
  await expect(page.locator(".result img")).toBeVisible();
  const names = () => page.locator(".tab").allTextContents();
  const order = await names();
  await page.keyboard.press("Alt+Shift+ArrowLeft");
  expect(await names()).toEqual([...order].reverse());
});

test("P0.41 a theme chosen before the settings load is kept after a reload", async ({ page }) => {
  const choose = async (what: string) => {
    await page.keyboard.press("Control+k");
    await page.getByRole("combobox", { name: "All actions" }).fill(what);
    await page.keyboard.press("Enter");
  };
  const scheme = () => page.evaluate(() => getComputedStyle(document.documentElement).colorScheme);
  await page.emulateMedia({ colorScheme: "dark" });
  const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await back();
  await page.route("**/settings/**", async (route) => {
    await new Promise((later) => setTimeout(later, 2_000));
    await route.continue();
  });
  const asked = page.waitForRequest("**/settings/**");
  await page.reload();
  await asked;
  await choose("Theme: light"); // before the stored theme is loaded
  await expect.poll(scheme).toBe("light");
  await page.waitForTimeout(3_000);
  expect(await back()).not.toBe(dark);
  await page.unroute("**/settings/**");
  await page.reload();
  await expect.poll(scheme).toBe("light");
  await choose("Theme: system");
  await expect.poll(scheme).toBe("light dark");
});

test.describe("by touch", () => {
  test.use({ hasTouch: true, viewport: { width: 1024, height: 768 } });
  test("P0.42 tapping an output and then an input links them; nothing is cut off at 1024 pixels", async ({
    page,
  }) => {
    await openTemplate(page, "Text to image");
    await page.keyboard.press("0");
    const { links } = await downloaded(page);
    const input = node(page, "3").locator('.react-flow__handle[data-handleid="in:0"]');
    await page.keyboard.press(".");
    await node(page, "1").locator('.react-flow__handle[data-handleid="out:1"]').tap();
    await input.tap();
    const after = await downloaded(page);
    expect(after.links).toHaveLength(links.length);
    expect(after.last_link_id).toBe(Math.max(...links.map(([id]: number[]) => id)) + 1);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    expect(wide).toBeLessThanOrEqual(1024);
    const run = await page.getByRole("button", { name: "Run", exact: true }).boundingBox();
    expect((run?.x ?? 0) + (run?.width ?? 0)).toBeLessThanOrEqual(1024);
  });
});
