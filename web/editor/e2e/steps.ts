/** What tests of the page share: a connected page, and common user actions. */
import { test as base, expect, type Page } from "@playwright/test";

/** Provides a page, and fails if its console has errors at the end. Tests may empty `troubles`. */
export const test = base.extend<{ readonly troubles: string[] }>({
  troubles: [
    async ({ page }, use) => {
      const troubles: string[] = [];
      page.on("console", (message) => {
        if (message.type() === "error") troubles.push(message.text());
      });
      page.on("pageerror", (error) => troubles.push(error.message));
      await page.goto("/");
      await expect(page.getByText("connected", { exact: true })).toBeVisible();
      await expect(page.locator("main.canvas")).toBeVisible(); // before that, keys have no effect
      await use(troubles);
      expect(troubles).toEqual([]);
    },
    { auto: true },
  ],
});

export async function openTemplate(page: Page, title: string): Promise<void> {
  await page.getByRole("button", { name: title }).first().click();
  await expect(page.locator(".card").first()).toBeVisible();
}

/** Opens a file through the file chooser. */
export async function openFile(page: Page, name: string, content: Buffer | string): Promise<void> {
  const chooser = page.waitForEvent("filechooser");
  await page.getByRole("button", { name: "Open files" }).click();
  const buffer = Buffer.from(content);
  await (await chooser).setFiles({ name, mimeType: "application/octet-stream", buffer });
}

export async function runToEnd(page: Page): Promise<void> {
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page.locator(".toolbar .state")).toContainText("completed in", { timeout: 45_000 });
}

export function node(page: Page, id: string) {
  return page.locator(`[data-node="${id}"]`);
}

/** Drags from the middle of an element to the middle of another one, or to a point of the page. */
export async function drag(page: Page, from: string, to: string | { x: number; y: number }) {
  const start = await page.locator(from).boundingBox();
  if (start === null) throw new Error(`${from} is not there`);
  await page.mouse.move(start.x + start.width / 2, start.y + start.height / 2);
  await page.mouse.down();
  let goal = typeof to === "string" ? null : to;
  if (typeof to === "string") {
    const box = await page.locator(to).boundingBox();
    if (box !== null) goal = { x: box.x + box.width / 2, y: box.y + box.height / 2 };
  }
  if (goal === null) throw new Error(`${to} is not there`);
  await page.mouse.move(goal.x - 20, goal.y, { steps: 4 });
  await page.mouse.move(goal.x, goal.y, { steps: 4 });
  await page.mouse.up();
}

/** Returns the selector of a node's handle. */
export const handle = (id: string, name: string) =>
  `[data-node="${id}"] .react-flow__handle[data-handleid="${name}"]`;

/** Returns the middle of a link in page coordinates. */
export function middleOf(page: Page, link: number): Promise<{ x: number; y: number }> {
  return page
    .locator(`.react-flow__edge[data-id="${link}"] .react-flow__edge-path`)
    .evaluate((path: SVGPathElement) => {
      const middle = path.getPointAtLength(path.getTotalLength() / 2);
      const { x, y } = middle.matrixTransform(path.getScreenCTM() ?? undefined);
      return { x, y };
    });
}

/** Runs an action of the palette by its title. */
export async function act(page: Page, title: string): Promise<void> {
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "All actions" }).fill(title);
  await page.keyboard.press("Enter");
}

/** Returns the active document as downloaded. */
export async function downloaded(page: Page) {
  const saving = page.waitForEvent("download");
  await act(page, "download the workflow");
  const { readFileSync } = await import("node:fs");
  return JSON.parse(readFileSync(await (await saving).path(), "utf8"));
}

/** Waits until the documents in the browser's storage contain a text. */
export async function untilKept(page: Page, text: string): Promise<void> {
  const kept = () =>
    page.evaluate(
      () =>
        new Promise<string>((resolve, reject) => {
          const opening = indexedDB.open("keyval-store"); // the default database of idb-keyval
          opening.onerror = () => reject(opening.error);
          opening.onsuccess = () => {
            const all = opening.result.transaction("keyval").objectStore("keyval").getAll();
            all.onerror = () => reject(all.error);
            all.onsuccess = () => {
              opening.result.close();
              resolve(JSON.stringify(all.result));
            };
          };
        }),
    );
  await expect.poll(kept).toContain(text);
}
