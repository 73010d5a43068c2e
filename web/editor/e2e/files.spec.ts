/** Files on the server, in several windows of one user, against a real `katz serve`. */
import { expect, type Page } from "@playwright/test";
import { downloaded, node, openFile, openTemplate, runToEnd, test, untilKept } from "./steps";

async function saveAs(page: Page, name: string): Promise<void> {
  await page.keyboard.press("Control+s");
  await page.getByRole("textbox", { name: /^Name/ }).fill(name);
  await page.keyboard.press("Enter");
  await expect(page.getByRole("alert")).toContainText(`saved as ${name}.json`);
}

/** Saves the changes and waits until they are saved, because an older notice may still be shown. */
async function saveAgain(page: Page): Promise<void> {
  const changed = page.locator(".tab.active b");
  await expect(changed).toBeVisible();
  await page.keyboard.press("Control+s");
  await expect(changed).toHaveCount(0);
}

async function setSteps(page: Page, steps: string): Promise<void> {
  await node(page, "5").getByLabel("steps").fill(steps);
  await node(page, "5").getByLabel("steps").press("Enter");
}

async function openSaved(page: Page, name: string): Promise<void> {
  await page.locator(".toolbar").getByRole("button", { name: "Saved workflows" }).click();
  await page
    .getByRole("complementary", { name: "saved workflows" })
    .getByRole("button", { name })
    .first()
    .click();
  await expect(page.locator(".card").first()).toBeVisible();
}

test("P0.16 a workflow is saved, renamed, reopened, and moved to the trash", async ({ page }) => {
  await openTemplate(page, "Text to image");
  await setSteps(page, "4");
  await expect(page.locator(".tab.active b")).toBeVisible();
  await saveAs(page, "mine/first");
  await expect(page.locator(".tab.active b")).toHaveCount(0);
  const kept = await downloaded(page);
  const stored = await page.request.get("/userdata/workflows%2Fmine%2Ffirst.json");
  expect(await stored.json()).toEqual(kept);
  await page.keyboard.press("w");
  const panel = page.getByRole("complementary", { name: "saved workflows" });
  await panel.getByRole("button", { name: "rename" }).first().click();
  await panel.getByLabel("new name").fill("mine/second");
  await panel.getByLabel("new name").press("Enter");
  await expect(page.locator(".tab.active")).toContainText("second");
  await page.keyboard.press("Alt+w");
  await panel.getByRole("button", { name: "mine/second" }).first().click();
  await expect(page.locator(".card").first()).toBeVisible();
  expect(await downloaded(page)).toEqual(kept);
  await panel.getByRole("button", { name: "delete" }).first().click();
  await expect(panel).toContainText("no saved workflows yet");
  await expect(page.locator(".tab.active b")).toBeVisible(); // no longer saved anywhere
  const trash = await page.request.get("/userdata?dir=workflows&recurse=true");
  expect(await trash.json()).toEqual([expect.stringMatching(/^\.trash\/\d+ mine second\.json$/)]);
});

test("P0.17 P0.18 two windows edit one file: neither change is lost", async ({
  page,
  context,
  troubles,
}) => {
  await openTemplate(page, "Text to image");
  await saveAs(page, "shared");
  const other = await context.newPage();
  await other.goto("/");
  await openSaved(other, "shared");
  await setSteps(other, "7");
  await saveAgain(other);
  await setSteps(page, "9");
  await page.keyboard.press("Control+s");
  const choice = page.getByRole("dialog", { name: "The file has changed" });
  await expect(choice).toContainText("shared.json was saved by another page");
  await choice.getByRole("button", { name: "Use the server's version" }).click();
  await expect(node(page, "5").getByLabel("steps")).toHaveValue("7");
  await page.keyboard.press("Control+z");
  await expect(node(page, "5").getByLabel("steps")).toHaveValue("9");
  await saveAgain(page);
  // the other window asks before it overwrites, and keeps both
  await setSteps(other, "8");
  await other.keyboard.press("Control+s");
  await other.getByRole("button", { name: /Keep both/ }).click();
  await other.getByRole("textbox", { name: /^Name/ }).fill("shared too");
  await other.keyboard.press("Enter");
  await expect(other.getByRole("alert")).toContainText("saved as shared too.json");
  const steps = async (name: string) => {
    const { nodes } = await (await page.request.get(`/userdata/workflows%2F${name}.json`)).json();
    return nodes.find(({ id }: { id: number }) => id === 5).widgets_values[2];
  };
  expect([await steps("shared"), await steps("shared%20too")]).toEqual([9, 8]);
  // each window restores its own documents
  await setSteps(other, "6174");
  await untilKept(other, "6174");
  await page.reload();
  await expect(node(page, "5").getByLabel("steps")).toHaveValue("9");
  await expect(page.locator(".tab")).toHaveCount(1);
  // the documents of a closed window move to the next opened one
  await other.close();
  const windows = () => page.evaluate(async () => (await navigator.locks.query()).held?.length);
  await expect.poll(windows).toBe(1);
  const third = await context.newPage();
  await third.goto("/");
  await expect(third.getByRole("alert")).toContainText("restored 1 document");
  await expect(node(third, "5").getByLabel("steps")).toHaveValue("6174");
  // the browser logs the refused save, and nothing else
  expect(troubles.splice(0)).toEqual([expect.stringContaining("412")]);
});

test("P0.30 P0.33 the gallery lists images newest first; a job in the history is opened and forgotten", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await setSteps(page, "2");
  await runToEnd(page);
  await node(page, "5").getByLabel("seed", { exact: true }).fill("4242");
  await node(page, "5").getByLabel("seed", { exact: true }).press("Enter");
  await runToEnd(page);
  await page.keyboard.press("g");
  const gallery = page.getByRole("complementary", { name: "gallery" });
  await expect(gallery.locator("li").nth(1)).toBeVisible();
  const newest = await gallery.locator("li img").first().getAttribute("alt");
  await gallery.locator("li button").first().click();
  const large = page.getByRole("dialog");
  await expect(large.getByRole("heading")).toHaveText(newest ?? "");
  await page.keyboard.press("ArrowRight");
  await expect(large.getByRole("heading")).not.toHaveText(newest ?? "");
  await page.keyboard.press("ArrowLeft");
  await page.keyboard.press("0");
  await expect(large.locator("img")).toHaveCSS("width", "128px");
  await page.keyboard.press("+");
  await expect(large.locator("img")).toHaveCSS("width", "160px");
  await page.keyboard.press("Escape");
  await gallery.getByLabel("filter pictures").fill("no such picture");
  await expect(gallery.locator("li")).toHaveCount(0);
  // the history opens a job's workflow as executed
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: /^queue/ }).click();
  const history = page.getByRole("complementary", { name: "queue and history" });
  const before = await history.locator("ol > li").count();
  await history.getByRole("button", { name: "Open as it ran" }).first().click();
  await expect(page.locator(".tab")).toHaveCount(2);
  await expect(node(page, "5").getByLabel("seed", { exact: true })).toHaveValue("4242");
  await history.getByRole("button", { name: "Forget" }).first().click();
  await expect(history.locator("ol > li")).toHaveCount(before - 1);
});

test("P0.41 the page asks for the token on the first visit and when it is lost, and keeps all edits", async ({
  page,
  troubles,
}) => {
  await openTemplate(page, "Text to image");
  await node(page, "5").getByLabel("steps").fill("7");
  await node(page, "5").getByLabel("steps").press("Enter");
  await page.context().clearCookies();
  await page.keyboard.press("Escape");
  await page.keyboard.press("w");
  const form = page.getByRole("form", { name: "token" });
  await expect(form).toContainText("--token-file");
  const give = async (token: string) => {
    await page.getByLabel("Token", { exact: true }).fill(token);
    await page.keyboard.press("Enter");
  };
  await give("wrong");
  await expect(form.getByRole("status")).toHaveText("Wrong token.");
  await give("token-of-the-tests");
  await expect(form).toHaveCount(0);
  await expect(node(page, "5").getByLabel("steps")).toHaveValue("7");
  await page.keyboard.press("Control+Enter");
  await expect(page.locator(".toolbar .state")).toContainText("completed in", { timeout: 45_000 });
  expect(await page.evaluate(() => document.cookie)).not.toContain("token");
  // a browser without the token gets a page that asks for it
  await page.context().clearCookies();
  await page.reload();
  await expect(page.locator("main.canvas")).toHaveCount(0);
  await give("wrong");
  await expect(page.getByText("Wrong token.")).toBeVisible();
  await give("token-of-the-tests");
  await expect(node(page, "5").getByLabel("steps")).toHaveValue("7");
  expect(page.url()).not.toContain("token");
  expect(troubles.every((line) => line.includes("401"))).toBe(true);
  troubles.length = 0;
});

test("P0.33 the gallery is filtered by workflow and by node, also after a reload", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await setSteps(page, "2");
  const doc = await downloaded(page);
  const save = doc.nodes.find(({ id }: { id: number }) => id === 91);
  const link = doc.links.find((one: number[]) => one[3] === 91);
  const second = {
    ...save,
    id: 95,
    title: "Second",
    pos: [save.pos[0], save.pos[1] + 400],
    widgets_values: ["second"], // otherwise it is the same image as the first one
    widgets_values_named: { filename_prefix: "second" },
  };
  doc.nodes.find(({ id }: { id: number }) => id === 5).widgets_values[0] = 616161; // not cached
  second.inputs = save.inputs.map((input: { link: number | null }) =>
    input.link === null ? input : { ...input, link: 900 },
  );
  const more = {
    ...doc,
    nodes: [...doc.nodes, second],
    links: [...doc.links, [900, link[1], link[2], 95, link[4], link[5]]],
    last_link_id: 900,
    last_node_id: 95,
  };
  await openFile(page, "two outputs.json", JSON.stringify(more));
  await expect(page.locator(".tab.active")).toContainText("two outputs");
  await runToEnd(page);
  await expect(node(page, "95").locator(".result img")).toBeVisible();
  await page.locator(".tab").first().locator("button").first().click();
  await node(page, "5").getByLabel("seed", { exact: true }).fill("5151");
  await node(page, "5").getByLabel("seed", { exact: true }).press("Enter");
  await runToEnd(page);
  await untilKept(page, "5151");
  await page.reload();
  await expect(page.locator(".card").first()).toBeVisible();
  await page.keyboard.press("g");
  const gallery = page.getByRole("complementary", { name: "gallery" });
  await gallery.getByLabel("workflow", { exact: true }).selectOption("two outputs");
  await expect(gallery.locator("li")).toHaveCount(2);
  await page.locator(".tab").nth(1).locator("button").first().click();
  await gallery.getByLabel("node", { exact: true }).selectOption("Second #95");
  await expect(gallery.locator("li")).toHaveCount(1);
  await gallery.getByLabel("workflow", { exact: true }).selectOption("all workflows");
  expect(await gallery.locator("li").count()).toBeGreaterThan(2);
  // a closed tab's workflow keeps its name
  await page.keyboard.press("Alt+w");
  await gallery.getByLabel("workflow", { exact: true }).selectOption("two outputs");
  await expect(gallery.locator("li")).toHaveCount(2);
  await expect(gallery.getByLabel("node", { exact: true }).locator("option")).toHaveText([
    "all nodes",
    "#91",
    "#95",
  ]);
});

/** Makes the page store its drafts now, as it does when it is hidden. */
async function hide(page: Page): Promise<void> {
  await page.evaluate(() => {
    Object.defineProperty(document, "visibilityState", { value: "hidden", configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
    Object.defineProperty(document, "visibilityState", { value: "visible", configurable: true });
  });
}

test("P0.17 drafts are stored on the server within 10 s, opened in another browser, and deleted on saving", async ({
  page,
  browser,
  context,
  troubles,
}) => {
  const drafts = async (): Promise<string[]> => {
    const all = await (await page.request.get("/v2/userdata")).json();
    return all
      .map(({ path }: { path: string }) => path)
      .filter((path: string) => /^drafts\/.*json$/.test(path));
  };
  const steps = (of: Page) => node(of, "5").getByLabel("steps");
  for (const path of await drafts())
    // drafts of other tests
    await page.request.delete(`/userdata/${encodeURIComponent(path)}`);
  await page.reload();
  await openTemplate(page, "Text to image");
  await hide(page);
  await page.waitForTimeout(300);
  expect(await drafts()).toEqual([]); // unchanged since it was opened
  await setSteps(page, "11");
  await expect.poll(async () => (await drafts()).length, { timeout: 10_000 }).toBe(1);
  const [first = ""] = await drafts();
  expect(first).toMatch(/^drafts\/txt2img [0-9a-f]{8}\.json$/);

  // another browser, without stored documents
  const elsewhere = await browser.newContext({ storageState: await context.storageState() });
  const other = await elsewhere.newPage();
  await other.goto("/");
  const list = other.getByRole("region", { name: "drafts" });
  await list.getByRole("button", { name: /^txt2img/ }).click();
  await expect(steps(other)).toHaveValue("11");
  await expect(other.locator(".tab.active b")).toBeVisible(); // not saved as a file
  await setSteps(other, "12");
  await hide(other);
  const stored = async (path: string) => {
    const { document } = await (
      await page.request.get(`/userdata/${encodeURIComponent(path)}`)
    ).json();
    return document.nodes.find(({ id }: { id: number }) => id === 5).widgets_values[2];
  };
  await expect.poll(() => stored(first)).toBe(12);

  // both continue: neither overwrites the other's draft
  await setSteps(page, "13");
  await hide(page);
  await expect.poll(async () => (await drafts()).length).toBe(2);
  const second = (await drafts()).find((path) => path !== first) ?? "";
  expect([await stored(first), await stored(second)]).toEqual([12, 13]);

  // a saved document needs no draft
  await saveAs(other, "drafted");
  await hide(other);
  await expect.poll(drafts).toEqual([second]);
  await elsewhere.close();

  // closing a tab keeps its draft, which can be deleted
  await setSteps(page, "14");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Alt+w");
  await hide(page);
  await expect.poll(() => stored(second)).toBe(14);
  await page.reload();
  await page.getByRole("button", { name: "delete the draft txt2img" }).click();
  await expect.poll(drafts).toEqual([]);
  expect(troubles.splice(0)).toEqual([expect.stringContaining("412")]);
});
