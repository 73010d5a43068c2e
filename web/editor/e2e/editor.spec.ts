/** A user's basic tasks, with the miniature models on a real `katz serve`. */
import { expect } from "@playwright/test";
import { downloaded, node, openFile, openTemplate, runToEnd, test, untilKept } from "./steps";

test("P0.20 P0.28 P0.29 P0.33 a template runs, its nodes show progress, and its image appears in the node", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await runToEnd(page);
  await expect(node(page, "5").locator(".badge")).toHaveClass(/done|cached/);
  await expect(node(page, "91").locator(".result img")).toBeVisible();
  await page.keyboard.press("q");
  await expect(page.getByLabel("queue and history").getByText("completed")).toBeVisible();
});

test("P0.29 two compared images are shown in the node", async ({ page }) => {
  const inputs = { image_a: ["1", 0], image_b: ["1", 0] };
  const prompt = {
    "1": { class_type: "EmptyImage", inputs: { width: 24, height: 8 } },
    "2": { class_type: "ImageCompare", inputs },
  };
  await openFile(page, "compare.json", JSON.stringify(prompt));
  await expect(node(page, "2")).toBeVisible();
  await runToEnd(page);
  await expect(node(page, "2").locator(".result img")).toHaveCount(2);
});

test("P0.34 P0.36 P0.38 the plan is shown on the sampler and described in the panel", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await node(page, "5").getByLabel("seed", { exact: true }).fill("4711"); // not cached
  await runToEnd(page);
  await expect(node(page, "5").locator(".strip")).toContainText("per evaluation, predicted");
  await page.keyboard.press("Shift+E");
  const panel = page.getByLabel("plan", { exact: true });
  await expect(panel).toContainText("Alternatives");
  await expect(panel).toContainText("Bound by");
  const spans = panel.locator(".timeline rect");
  expect(await spans.count()).toBeGreaterThan(4);
  await spans.first().hover();
  await expect(panel.locator(".timeline figcaption")).toContainText(", evaluation ");
});

test("P0.09 P0.23 P0.25 a prompt edit is undone in one step; the field shows the seed of the latest run", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  const prompt = node(page, "2").getByLabel("text");
  const before = await prompt.inputValue();
  await prompt.fill("a blue circle on sand");
  await prompt.press("End");
  await prompt.pressSequentially(" at night");
  await page.locator(".react-flow__pane").click({ position: { x: 30, y: 30 } });
  await page.keyboard.press("Control+z");
  await expect(prompt).toHaveValue(before);
  await page.keyboard.press("Control+Shift+Z");
  await expect(prompt).toHaveValue("a blue circle on sand at night");
  await node(page, "5").getByLabel("seed, next run").selectOption("+1");
  await runToEnd(page);
  await expect(node(page, "5").getByLabel("seed", { exact: true })).toHaveValue("7");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(node(page, "5").getByLabel("seed", { exact: true })).toHaveValue("8");
});

test("P0.14 an image opens in a new tab and reproduces itself; an invalid file is reported in one line", async ({
  page,
  troubles,
}) => {
  await openTemplate(page, "Text to image");
  await runToEnd(page);
  const address = await node(page, "91").locator(".result img").getAttribute("src");
  const file = new URL(address ?? "", page.url());
  file.searchParams.delete("width");
  const picture = await (await page.request.get(file.href)).body();
  await openFile(page, "mine.png", picture);
  await expect(page.locator(".tab.active")).toContainText("mine");
  await runToEnd(page);
  const again = await node(page, "91").locator(".result img").getAttribute("src");
  const second = new URL(again ?? "", page.url());
  second.searchParams.delete("width");
  await openFile(page, "broken.json", "{");
  await expect(page.getByRole("alert")).toContainText("broken.json: the file cannot be opened");
  await expect(page.locator(".tab")).toHaveCount(2);
  troubles.splice(0); // the browser logs the refusal
  const pixels = await page.evaluate(
    async (addresses) =>
      Promise.all(
        addresses.map(async (one) => {
          const bitmap = await createImageBitmap(await (await fetch(one)).blob());
          const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
          const context = canvas.getContext("2d");
          context?.drawImage(bitmap, 0, 0);
          return [...(context?.getImageData(0, 0, bitmap.width, bitmap.height).data ?? [])].join();
        }),
      ),
    [file.href, second.href],
  );
  expect(pixels[0]).toBe(pixels[1]);
  expect(pixels[0]?.length).toBeGreaterThan(1000);
});

test("P0.16 P0.17 a reload restores all tabs and edits; a download differs from the file only by the edits", async ({
  page,
}) => {
  await openTemplate(page, "Inpainting");
  await node(page, "5").getByLabel("steps").fill("3141");
  await node(page, "5").getByLabel("steps").press("Enter");
  await untilKept(page, "3141");
  await page.reload();
  await expect(page.getByRole("alert")).toContainText("restored");
  await expect(node(page, "5").getByLabel("steps")).toHaveValue("3141");
  const written = await downloaded(page);
  const opened = await (await page.request.get("/templates/inpaint.json")).json();
  const sampler = opened.nodes.find(({ id }: { id: number }) => id === 5);
  sampler.widgets_values[2] = 3141;
  sampler.widgets_values_named.steps = 3141;
  expect(written).toEqual(opened);
});

test("P0.02 P0.04 P0.31 a node is added by search, its missing input is reported, and adding it is undone", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await page.locator(".react-flow__pane").dblclick({ position: { x: 200, y: 120 } });
  const search = page.getByRole("combobox", { name: "Add a node" });
  await search.fill("save image");
  await search.press("Enter");
  const problems = page.getByLabel("problems");
  await expect(problems).toContainText("Required input is missing");
  await problems.getByRole("button").first().click();
  await expect(page.locator(".card.selected")).toHaveCount(1);
  await page.keyboard.press("Control+z");
  await expect(problems).toHaveCount(0);
});

test("P0.02 P0.03 search tolerates typos, browses categories, adds several nodes, and ranks recent ones", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  const before = await page.locator(".card").count();
  const pane = page.locator(".react-flow__pane");
  await pane.dblclick({ position: { x: 200, y: 120 } });
  const search = page.getByRole("combobox", { name: "Add a node" });
  await search.fill("sav imgae");
  const options = page.getByRole("listbox").getByRole("option");
  const first = options.first();
  await expect(first).toContainText("SaveImage");
  await expect(first).toContainText("Katz Graph");
  await expect(first).toContainText("IMAGE → ");
  await search.press("Shift+Enter");
  await search.press("Shift+Enter");
  await search.fill("load");
  await search.press("ArrowDown");
  await search.press("ArrowDown");
  await search.press("Shift+Enter");
  await search.press("Shift+Enter");
  await search.press("Escape");
  const cards = page.locator(".card");
  await expect(cards).toHaveCount(before + 4);
  const titles = await cards.locator("header").allTextContents();
  const [one, other] = titles.slice(-2).map((title) => title.replace(/\d+$/, ""));
  expect(one).toBe(other); // the order stays while the search is open, despite the recent use
  await page.keyboard.press("Shift+A");
  await expect(first).toContainText(other ?? "nothing"); // used recently, and twice
  await expect(options.nth(1)).toContainText("SaveImage");
  await options.filter({ hasText: "loaders ›" }).click();
  const inside = page.getByRole("combobox", { name: "Add a node: loaders" });
  await inside.press("Backspace");
  await expect(search).toBeFocused();
  await search.press("Escape");
  await page.keyboard.press("n");
  const library = page.getByLabel("node types", { exact: true });
  await library.getByLabel("list by").selectOption("pack");
  await expect(library.locator("summary").filter({ hasText: "Katz Graph" })).toHaveCount(1);
});

test("P0.30 P0.33 a paused queue keeps its job until it is resumed; an image opens its workflow", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await page.keyboard.press("q");
  const panel = page.getByLabel("queue and history");
  await panel.getByRole("button", { name: "Pause" }).click();
  await expect(panel).toContainText("paused: waiting jobs stay in the queue");
  await node(page, "5").getByLabel("seed", { exact: true }).fill("99");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page.locator(".toolbar .state")).toContainText("waiting");
  await expect(panel).toContainText("1 waiting");
  await panel.getByRole("button", { name: "Resume" }).click();
  await expect(page.locator(".toolbar .state")).toContainText("completed in", { timeout: 45_000 });
  await panel.locator(".pictures button").first().click();
  await page.getByRole("button", { name: "Open the workflow" }).click();
  await expect(page.locator(".tab")).toHaveCount(2);
  await expect(node(page, "5").getByLabel("seed", { exact: true })).toHaveValue("99");
});

test("P0.39 every action is in the palette and in the shortcuts dialog", async ({ page }) => {
  await page.keyboard.press("Control+k");
  const palette = page.getByRole("combobox", { name: "All actions" });
  await palette.fill("shortcuts");
  await palette.press("Enter");
  await expect(page.getByRole("dialog", { name: "Shortcuts" })).toContainText("Ctrl Enter");
});

test("P0.39 a shortcut is changed, a conflict is reported, and the change survives a reload", async ({
  page,
}) => {
  const sheet = page.getByRole("dialog", { name: "Shortcuts" });
  const close = async () => {
    await page.keyboard.press("Escape");
    await expect(page.locator("dialog")).toHaveCount(0); // a closing dialog still gets the next key
  };
  const give = async (action: string, key: string) => {
    await page.getByRole("button", { name: "Shortcuts", exact: true }).click();
    await sheet.getByRole("button", { name: `change the key of ${action}`, exact: false }).click();
    await page.keyboard.press(key);
  };
  const templates = page.getByRole("dialog", { name: "Templates" });
  const jobs = page.getByRole("complementary", { name: "queue and history" });
  await give("Templates", "j");
  await close();
  await page.keyboard.press("t");
  await expect(templates).toHaveCount(0);
  await page.keyboard.press("j");
  await expect(templates).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(templates).toHaveCount(0);
  // a key that another action uses is reassigned only after a confirmation
  await give("Queue and history", "j");
  await expect(sheet.getByRole("status")).toContainText("J is the key of “Templates” already");
  await sheet.getByRole("button", { name: "Use it for “Queue and history”" }).click();
  await expect(
    sheet.getByRole("button", { name: "none, change the key of Templates" }),
  ).toBeVisible();
  await close();
  await page.reload();
  await expect(page.locator("main.canvas")).toBeVisible();
  await expect(page.getByRole("button", { name: "queue" })).toHaveAttribute("title", /\(J\)/);
  await page.keyboard.press("j");
  await expect(jobs).toBeVisible();
  await expect(templates).toHaveCount(0);
  await page.getByRole("button", { name: "Shortcuts", exact: true }).click();
  const kept = page.waitForResponse((answer) => answer.url().includes("katz.keys"));
  await sheet.getByRole("button", { name: "Reset all" }).click();
  await kept;
  await close();
  await page.keyboard.press("t");
  await expect(templates).toBeVisible();
});
