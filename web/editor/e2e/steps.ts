/** What tests of the page share: a page that is connected, and steps that people take on it. */
import { test as base, expect, type Page } from "@playwright/test";

/** A page on which nothing stands on the console at the end. `troubles` may be emptied. */
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
      await expect(page.locator("main.canvas")).toBeVisible(); // before it, keys go nowhere
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

/** Opens a file as the dialog does. */
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

/** The document in front, as it is downloaded. */
export async function downloaded(page: Page) {
  const saving = page.waitForEvent("download");
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "All actions" }).fill("download the workflow");
  await page.keyboard.press("Enter");
  const { readFileSync } = await import("node:fs");
  return JSON.parse(readFileSync(await (await saving).path(), "utf8"));
}
