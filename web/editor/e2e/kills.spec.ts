/** The browser is killed while in use; the user's work is restored. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type BrowserContext, chromium, expect, type Page, test } from "@playwright/test";
import { node, openTemplate } from "./steps";

const KILLS = Number(process.env.KATZ_KILLS ?? "2"); // 20 in a full run
const LOST = 1000; // ms of work that may be lost
const WORDS = "a red star above an orange heart on sand, ";

interface Step {
  readonly at: number;
  readonly text: string;
  readonly x: number;
}

test(`P0.17 killing the browser loses at most one second of typing and dragging`, async ({
  baseURL,
  launchOptions,
  storageState,
}) => {
  test.setTimeout(60_000 + KILLS * 20_000);
  const folder = mkdtempSync(join(tmpdir(), "killed-"));
  const { cookies } = storageState as { cookies: Parameters<BrowserContext["addCookies"]>[0] };
  const open = async (): Promise<Page> => {
    const context = await chromium.launchPersistentContext(folder, {
      ...launchOptions,
      baseURL,
      viewport: { width: 1440, height: 900 },
    });
    await context.addCookies(cookies);
    const page = context.pages()[0] ?? (await context.newPage());
    await page.goto("/");
    await expect(page.locator("main.canvas")).toBeVisible();
    return page;
  };
  const place = async (page: Page) => (await node(page, "5").boundingBox())?.x ?? Number.NaN;

  let done: Step[] = [];
  for (let kill = 0; kill <= KILLS; kill++) {
    const page = await open();
    if (kill === 0) await openTemplate(page, "Text to image");
    else await expect(page.getByRole("alert")).toContainText("restored");
    await expect(node(page, "5")).toBeVisible();
    const field = node(page, "2").locator("textarea");
    const text = await field.inputValue();
    const x = await place(page);
    if (kill > 0) {
      const killed = done[done.length - 1]?.at ?? 0;
      const sure = done.filter(({ at }) => at <= killed - LOST);
      const oldest = sure.length > 0 ? sure.length - 1 : 0;
      // the restored state existed within the last second
      const within = done.slice(oldest);
      expect(within.map((step) => step.text)).toContain(text);
      expect(Math.min(...within.map((step) => Math.abs(step.x - x)))).toBeLessThan(3);
    }
    if (kill === KILLS) {
      await page.context().close();
      break;
    }
    done = [{ at: Date.now(), text, x }];
    const end = Date.now() + 1500 + Math.random() * 2500;
    await field.focus();
    await page.keyboard.press("Control+End");
    let letter = 0;
    while (Date.now() < end) {
      if (kill % 2 === 0) await page.keyboard.type(WORDS[letter++ % WORDS.length] ?? "");
      else {
        const box = await node(page, "5").locator(".title, header").first().boundingBox();
        if (box === null) throw new Error("node 5 is not in view");
        const side = done.length % 2 === 0 ? 30 : -25;
        await page.mouse.move(box.x + 40, box.y + 8);
        await page.mouse.down();
        await page.mouse.move(box.x + 40 + side, box.y + 8, { steps: 3 });
        await page.mouse.up();
      }
      done.push({ at: Date.now(), text: await field.inputValue(), x: await place(page) });
    }
    execFileSync("pkill", ["-9", "-f", folder]);
    await page
      .context()
      .close()
      .catch(() => {});
  }
  rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
});
