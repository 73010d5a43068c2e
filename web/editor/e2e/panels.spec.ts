/** Panels next to the graph, against a real `katz serve`. */
import { expect } from "@playwright/test";
import { act, downloaded, handle, node, openTemplate, runToEnd, test } from "./steps";

test("P1.24 packs list their nodes and why one was left out; the help of a node names its pack", async ({
  page,
}) => {
  await act(page, "Packs");
  const packs = page.getByRole("complementary", { name: "packs" });
  await expect(packs.getByRole("listitem").first()).toContainText("broken");
  await expect(packs.getByText(/a_module_that_nobody_has/)).toBeVisible();
  await expect(packs.getByText(/\/packs\/broken/)).toHaveCount(0); // server folders are hidden
  await packs.locator("summary", { hasText: "Katz Graph" }).click();
  await packs.getByRole("button", { name: "KSampler", exact: true }).click();
  await expect(page.locator(".card .name")).toHaveText("KSampler");
  await page.locator("main.canvas").focus();
  await page.keyboard.press("F1");
  await expect(page.getByRole("region", { name: "help" })).toContainText(
    "KSampler, from Katz Graph",
  );
  await page.getByRole("button", { name: "Packs", exact: true }).click();
  await expect(packs).toBeVisible();
});

test("P1.26 custom colours and a larger text size apply to nodes, also in another browser", async ({
  page,
  browser,
}) => {
  await page.emulateMedia({ colorScheme: "dark" });
  await openTemplate(page, "Text to image");
  const before = (await node(page, "5").boundingBox())?.height ?? 0;
  await page.keyboard.press("Shift+T");
  const look = page.getByRole("dialog", { name: "Appearance" });
  await look.getByLabel("secondary text, dark").fill("#23262c");
  await expect(look.getByRole("status")).toContainText("secondary text (dim) on nodes and panels");
  const text = look.getByLabel("Export or import as text");
  await expect(text).toHaveValue("--dark-dim: #23262c;");
  await text.fill("--dark-panel: #203040;\n--dark-panel: url(//far.example)\n");
  await look.getByRole("button", { name: "Apply" }).click();
  await expect(look.getByRole("status")).toHaveText(/not valid: .*far.example/);
  await look.getByLabel("Text size in nodes").fill("18");
  const kept = page.waitForResponse(/settings\/katz.look/);
  await page.keyboard.press("Escape");
  await kept;
  await expect(node(page, "5")).toHaveCSS("font-size", "18px");
  await expect(node(page, "5")).toHaveCSS("background-color", "rgb(32, 48, 64)");
  expect((await node(page, "5").boundingBox())?.height).toBeGreaterThan(before);
  // links end at the inputs, which have moved
  const box = await page.locator(handle("5", "in:1")).boundingBox();
  const end = await page
    .locator('.react-flow__edge[data-id="4"] .react-flow__edge-path')
    .evaluate((path: SVGPathElement) => {
      const last = path.getPointAtLength(path.getTotalLength());
      return last.matrixTransform(path.getScreenCTM() ?? undefined).y;
    });
  expect(Math.abs(end - (box?.y ?? 0) - (box?.height ?? 0) / 2)).toBeLessThan(1);
  const other = await browser.newPage({ storageState: await page.context().storageState() });
  await other.goto("/");
  await expect(other.locator("html")).toHaveAttribute("style", /--node-text: 18px/);
  await other.close();
  await page.keyboard.press("Shift+T");
  const reset = page.waitForResponse(/settings\/katz.look/);
  await look.getByRole("button", { name: "Reset all" }).click();
  await reset;
  await expect(page.locator("html")).not.toHaveAttribute("style", /--/);
});

test("P1.18 models show previews and notes, are added as loaders, and append triggers to a prompt", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await page.locator("main.canvas").press("m");
  const models = page.getByRole("complementary", { name: "models" });
  await models.getByLabel("kind").selectOption("loras");
  await models.getByLabel("filter models").fill("inked");
  const inked = models.getByRole("button", { name: "inked.safetensors", exact: true });
  await expect(inked.locator("img")).toHaveJSProperty("complete", true);
  expect(await inked.locator("img").evaluate((img: HTMLImageElement) => img.naturalWidth)).toBe(
    128,
  );
  await node(page, "2").locator(".card-title").click();
  await models.getByRole("button", { name: "notes of inked.safetensors" }).click();
  await models.getByRole("button", { name: "on paper", exact: true }).click();
  await expect(node(page, "2").getByRole("textbox").first()).toHaveValue(/, on paper$/);
  const cards = await page.locator(".card").count();
  await inked.dragTo(page.locator("main.canvas"), { targetPosition: { x: 250, y: 620 } });
  await expect(page.locator(".card")).toHaveCount(cards + 1);
  const added = page.locator(".card", { hasText: "inked.safetensors" });
  await expect(added.locator(".name")).toHaveText("LoraLoaderModelOnly");
  await page
    .getByRole("region", { name: "notes of" })
    .getByRole("button", { name: "Load LoRA", exact: true })
    .click();
  await expect(page.locator(".card")).toHaveCount(cards + 2);
});

test("P1.16 devices show their load, work and memory while a job samples", async ({ page }) => {
  await openTemplate(page, "ControlNet and LoRA");
  const steps = node(page, "5").getByLabel("steps");
  await steps.fill("400");
  await steps.press("Enter");
  await page.locator("main.canvas").press("d");
  const devices = page.getByRole("complementary", { name: "devices" });
  const first = devices.getByRole("listitem", { name: "cpu:0" });
  await expect(first).toContainText(/memory.*\d of \d.* GB/);
  await expect(first).toContainText("0 %");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(first).toContainText(/[1-9]\d? %/, { timeout: 30_000 });
  const seen = await first.locator("rect").count();
  expect(seen).toBeGreaterThan(0);
  await expect.poll(() => first.locator("rect").count()).not.toBe(seen); // it is updated
  await page.keyboard.press("Shift+E");
  const timeline = page.getByRole("complementary", { name: "plan" });
  await expect(timeline.locator(".span").first()).toBeVisible();
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await expect(page.locator(".toolbar .state")).toContainText("cancelled");
  await page.locator("main.canvas").press("d");
  await expect(first).toContainText("0 %");
});

test("P1.23 a tab names the other users of its file until they leave", async ({
  page,
  browser,
}) => {
  await openTemplate(page, "Text to image");
  await page.keyboard.press("Control+s");
  await page.getByRole("dialog").getByRole("textbox").fill("together");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("navigation", { name: "documents" })).toContainText("together");
  const others = page.getByRole("img", { name: /^also open/ });
  await expect(others).toHaveCount(0);
  const other = await browser.newPage({ storageState: await page.context().storageState() });
  await other.goto("/");
  await expect(other.locator("main.canvas")).toBeVisible();
  other.on("dialog", (dialog) => void dialog.accept("Ann"));
  await act(other, "Your name");
  await other.locator("main.canvas").press("w");
  await other.getByRole("button", { name: /^together/ }).click();
  await expect(other.getByRole("img", { name: "also open: another page" })).toBeVisible();
  const look = () => page.evaluate(() => window.dispatchEvent(new Event("focus"))); // else in 15 s
  await look();
  await expect(page.getByRole("img", { name: "also open: Ann" })).toBeVisible();
  await other.close({ runBeforeUnload: true });
  await expect(async () => {
    await look();
    await expect(others).toHaveCount(0, { timeout: 1_000 });
  }).toPass();
  await page.request.delete("/userdata/workflows%2Ftogether.json");
});

test("P1.27 shortcuts, favourites and theme are imported from a settings file of ComfyUI's front end", async ({
  page,
}) => {
  const settings = {
    "Comfy.Keybinding.NewBindings": [
      { commandId: "Workspace.ToggleSidebarTab.node-library", combo: { key: "F8" } },
      { commandId: "SomePack.Command", combo: { key: "x" } },
    ],
    "Comfy.NodeLibrary.Bookmarks.V2": ["latent/VAEDecode"],
    "Comfy.ColorPalette": "light",
  };
  await page.emulateMedia({ colorScheme: "dark" });
  const chooser = page.waitForEvent("filechooser");
  await act(page, "Import settings");
  const buffer = Buffer.from(JSON.stringify(settings));
  const file = { name: "comfy.settings.json", mimeType: "application/json", buffer };
  await (await chooser).setFiles(file);
  const told = page.getByRole("alert");
  await expect(told).toContainText("1 shortcut, 1 favourite, 0 colours, the light theme");
  await expect(told).toContainText("unknown: SomePack.Command");
  await expect(page.locator("body")).toHaveCSS("background-color", "rgb(243, 244, 246)");
  await page.locator("main.canvas").press("F8");
  const library = page.getByRole("complementary", { name: "node types" });
  const favourite = library
    .getByRole("button", { name: "favourite VAEDecode", exact: true })
    .first();
  await expect(favourite).toHaveAttribute("aria-pressed", "true");
  await favourite.click();
  await page.keyboard.press("?");
  await page.getByRole("button", { name: "Reset all" }).click();
  await page.keyboard.press("Escape");
  const kept = page.waitForResponse(/settings\/katz.theme/);
  await act(page, "Theme: system");
  await kept;
});

test("P1.22 a link opens the read-only page of a job, and from there a copy in the editor", async ({
  page,
  browser,
}) => {
  await openTemplate(page, "Text to image");
  await runToEnd(page);
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await page.locator("main.canvas").press("q");
  await page.getByRole("button", { name: "Copy link" }).first().click();
  await expect(page.getByRole("alert")).toContainText("copied a link");
  const link = await page.evaluate(() => navigator.clipboard.readText());
  expect(link).toMatch(/\?job=[0-9a-f-]{36}$/);
  const other = await browser.newPage({ storageState: await page.context().storageState() });
  await other.goto(link);
  const job = other.getByRole("main", { name: "job" });
  await expect(job.getByRole("status")).toContainText("completed in");
  await expect(job.getByRole("img")).toBeVisible();
  await expect(job).toContainText("a large red star");
  await expect(job.locator("button, input, textarea, select")).toHaveCount(0);
  await job.getByRole("link", { name: "Open a copy in the editor" }).click();
  await expect(other.locator(".tab.active")).toContainText(/job [0-9a-f]{8}/);
  await expect(other.locator(".card")).toHaveCount(await page.locator(".card").count());
  await other.close();
});

test("P1.08 a form shows only the chosen fields and results, edits both ways, and is stored in the file", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  const untouched = await downloaded(page);
  await page.locator("main.canvas").press("f");
  const form = page.getByRole("complementary", { name: "form" });
  await expect(form).toContainText("No field was chosen yet");
  await node(page, "5").locator('[data-widget="steps"]').hover();
  await page.keyboard.press("Control+Shift+F");
  await node(page, "2").getByRole("textbox").focus();
  await page.keyboard.press("Control+Shift+F");
  await expect(form.getByRole("listitem")).toHaveCount(2);
  await form.getByLabel("steps", { exact: true }).fill("3");
  await page.keyboard.press("Enter");
  await expect(node(page, "5").getByLabel("steps")).toHaveValue("3");
  await node(page, "5").getByLabel("steps").fill("4");
  await page.keyboard.press("Enter");
  await expect(form.getByLabel("steps", { exact: true })).toHaveValue("4");
  await form.getByRole("button", { name: "move text up" }).click();
  await expect(form.getByRole("listitem").first()).toContainText("text");
  await runToEnd(page);
  await expect(form.locator(".result img")).toBeVisible();
  expect((await downloaded(page)).extra.katz.form.fields).toEqual([
    { node: "2", widget: "text" },
    { node: "5", widget: "steps" },
  ]);
  await form.getByRole("button", { name: "remove text from the form" }).click();
  await form.getByRole("button", { name: "remove steps from the form" }).click();
  expect((await downloaded(page)).extra).toEqual(untouched.extra);
});
