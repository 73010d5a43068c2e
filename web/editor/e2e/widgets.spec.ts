/** Fields of nodes, against a real `katz serve`. */
import { expect } from "@playwright/test";
import { act, downloaded, node, openFile, openTemplate, runToEnd, test } from "./steps";

test("P0.21 P0.09 a number is dragged by its label in one undo step, and reset to its default", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await page.keyboard.press("0"); // 100 %
  const steps = node(page, "5").getByLabel("steps");
  const before = await steps.inputValue();
  const name = node(page, "5").locator(".label.drag", { hasText: "steps" });
  const box = await name.boundingBox();
  if (box === null) throw new Error("no name");
  await page.mouse.move(box.x + 10, box.y + 5);
  await page.mouse.down();
  await page.mouse.move(box.x + 30, box.y + 5, { steps: 4 });
  await page.mouse.move(box.x + 40, box.y + 5, { steps: 4 });
  await page.mouse.up();
  await expect(steps).toHaveValue(String(Number(before) + 5));
  await page.getByRole("main").press("Control+z");
  await expect(steps).toHaveValue(before);
  await name.dblclick();
  await expect(steps).toHaveValue("20");
});

test("P0.23 Ctrl and an arrow key change a word's weight; alternatives are chosen when sent", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  const text = node(page, "2").getByRole("textbox");
  await text.fill("a {red|red} star");
  await text.press("End");
  await text.press("Control+ArrowUp");
  await text.press("Control+ArrowUp");
  await expect(text).toHaveValue("a {red|red} (star:1.1)");
  const sending = page.waitForRequest("**/prompt");
  await page.keyboard.press("Control+Enter");
  const sent = (await sending).postDataJSON().prompt.nodes;
  const value = sent.find(({ id }: { id: number }) => id === 2).widgets_values[0];
  expect(value).toBe("a red (star:1.1)");
  await expect(text).toHaveValue("a {red|red} (star:1.1)");
});

test("P0.22 a long list is searched by words with the keyboard", async ({ page }) => {
  await page.route("**/object_info", async (route) => {
    const answer = await (await route.fetch()).json();
    const names = Array.from({ length: 10_000 }, (_, number) => `styles/one ${number}.safetensors`);
    answer.LoraLoader.input.required.lora_name = [names, {}];
    await route.fulfill({ json: answer });
  });
  await page.reload();
  await openTemplate(page, "ControlNet and LoRA");
  const field = node(page, "8").getByLabel("lora name").or(node(page, "8").getByLabel("lora_name"));
  await expect(field).toContainText("(missing)"); // stays until the user chooses another
  await field.press("Enter");
  await page.keyboard.type("styles 7654");
  await page.keyboard.press("Enter");
  await expect(field).toHaveText("styles/one 7654.safetensors");
});

test("P0.24 P0.26 a mask is painted over an image and reopened with it; the image file is unchanged", async ({
  page,
}) => {
  await openTemplate(page, "ControlNet and LoRA");
  const loader = node(page, "6");
  const original = await loader.getByLabel("image").inputValue();
  const size = (bytes: Buffer) => bytes.length;
  const address = `/view?filename=${original}&type=input`;
  const before = size(await (await page.request.get(address)).body());
  await loader.getByRole("button", { name: "mask" }).click();
  const dialog = page.getByRole("dialog", { name: /^Mask of/ });
  const canvas = dialog.locator("canvas");
  await expect(canvas).not.toHaveAttribute("width", "0");
  const box = await canvas.boundingBox();
  if (box === null) throw new Error("no canvas");
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width - 4, box.y + box.height / 2, { steps: 4 });
  await page.mouse.up();
  await dialog.getByRole("button", { name: "Use this mask" }).click();
  await expect(dialog).toHaveCount(0);
  const masked = await loader.getByLabel("image").inputValue();
  expect(masked).toMatch(/ mask( \(\d+\))?\.png$/);
  expect(size(await (await page.request.get(address)).body())).toBe(before);
  const { nodes } = await downloaded(page);
  const made = nodes.find(({ id }: { id: number }) => id === 6);
  expect(made.widgets_values[0]).toBe(masked);
  // reopens with its mask: clear at the left, covered in the middle
  await loader.getByRole("button", { name: "mask" }).click();
  await expect(canvas).not.toHaveAttribute("width", "0");
  const cover = () =>
    canvas.evaluate((drawn: HTMLCanvasElement) => {
      const middle = drawn.height / 2;
      const at = (x: number) => drawn.getContext("2d")?.getImageData(x, middle, 1, 1).data[3];
      return [at(1), at(drawn.width / 2)].map((alpha) => (alpha ?? 0) > 100);
    });
  await expect.poll(cover).toEqual([false, true]);
  await dialog.getByRole("button", { name: "Cancel" }).click();
  await page.keyboard.press("Control+z");
  await expect(loader.getByLabel("image")).toHaveValue(original);
});

test("P0.27 advanced inputs are collapsed until requested; optional ones are marked", async ({
  page,
}) => {
  await page.route("**/object_info", async (route) => {
    const answer = await (await route.fetch()).json();
    const loader = answer.LoraLoader.input;
    loader.required.strength_clip[1].advanced = true;
    loader.optional = { ...loader.optional, clip: loader.required.clip };
    delete loader.required.clip;
    await route.fulfill({ json: answer });
  });
  await page.reload();
  await openTemplate(page, "ControlNet and LoRA");
  const loader = node(page, "8");
  await expect(loader.getByLabel("strength_model")).toBeVisible();
  await expect(loader.getByLabel("strength_clip")).toHaveCount(0);
  await loader.getByRole("button", { name: "1 advanced" }).click();
  await expect(loader.getByLabel("strength_clip")).toBeVisible();
  await expect(loader.locator(".in.optional", { hasText: "clip" })).toHaveCount(1);
  await expect(loader.locator(".in.optional", { hasText: "model" })).toHaveCount(0);
});

test("P0.24 P0.33 a result is used as an input", async ({ page }) => {
  await openTemplate(page, "Text to image");
  await runToEnd(page);
  await page.locator(".result").click();
  await page.getByRole("dialog").getByRole("button", { name: "Use as input" }).click();
  const field = node(page, "92").getByLabel("image");
  await expect(field).toHaveValue(/^txt2img_\d+_\.png \[output\]$/);
  await expect(node(page, "92").locator(".missing")).toHaveCount(0);
  const picture = node(page, "92").locator(".thumbnail");
  await expect(picture).toHaveJSProperty("complete", true);
  expect(await picture.evaluate((image: HTMLImageElement) => image.naturalWidth)).toBe(128);
});

test("P0.15 a missing model is kept and marked, and its nearest match is offered", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  const doc = await downloaded(page);
  const loader = doc.nodes.find(({ id }: { id: number }) => id === 1);
  loader.widgets_values[0] = "katz-mimi";
  await openFile(page, "other.json", JSON.stringify(doc));
  await expect(page.locator(".tab.active")).toContainText("other");
  const field = node(page, "1").getByLabel("ckpt_name");
  await expect(field).toHaveValue("katz-mimi");
  await expect(field).toHaveClass(/missing/);
  expect((await downloaded(page)).nodes).toEqual(doc.nodes);
  await node(page, "1").getByRole("button", { name: "use katz-mini?" }).click();
  await expect(field).toHaveValue("katz-mini");
});

test("P0.24 a colour is picked or typed, and stored in its widget's format", async ({ page }) => {
  await page.route("**/object_info", async (route) => {
    const answer = await (await route.fetch()).json();
    const required = { tone: ["COLOR", { default: "#ff0000" }], share: ["FLOAT", { default: 1 }] };
    answer.Tint = { ...answer.EmptyImage, display_name: "Tint", input: { required } };
    await route.fulfill({ json: answer });
  });
  await page.reload();
  await expect(page.locator("main.canvas")).toBeVisible();
  const add = async (name: string) => {
    await page.keyboard.press("Shift+A");
    await page.getByRole("combobox", { name: "Add a node" }).fill(name);
    await page.getByRole("option").first().click();
  };
  await add("EmptyImage");
  await add("Tint");
  const plain = node(page, "1");
  await plain.getByLabel("color, picker").fill("#0180ff");
  await expect(plain.getByLabel("color", { exact: true })).toHaveValue(String(0x0180ff));
  const tint = node(page, "2");
  await tint.getByLabel("tone, picker").fill("#00ff00");
  await expect(tint.getByLabel("tone", { exact: true })).toHaveValue("#00ff00");
  await tint.getByLabel("tone", { exact: true }).fill("ABCDEF80");
  await tint.getByLabel("tone", { exact: true }).press("Enter");
  await expect(tint.getByLabel("tone, picker")).toHaveValue("#abcdef");
  await tint.getByLabel("tone", { exact: true }).fill("url(//example.org)");
  await tint.getByLabel("tone", { exact: true }).press("Enter");
  await expect(tint.getByLabel("tone", { exact: true })).toHaveValue("#abcdef80");
  const { nodes } = await downloaded(page);
  expect(nodes[0].widgets_values.at(-1)).toBe(0x0180ff);
  expect(nodes[1].widgets_values).toEqual(["#abcdef80", 1]);
  await page.getByRole("main").press("Control+z");
  await expect(tint.getByLabel("tone", { exact: true })).toHaveValue("#00ff00");
});

test("P0.03 help of an input is shown at its label, at its field and by F1; a tooltip is not HTML", async ({
  page,
}) => {
  await page.route("**/object_info", async (route) => {
    const answer = await (await route.fetch()).json();
    answer.KSampler.input.required.cfg[1].tooltip = "<img src=x> how closely";
    answer.KSampler.input.required.model = ["MODEL", { tooltip: "what denoises" }];
    answer.KSampler.output_tooltips = ["the picture to be"];
    await route.fulfill({ json: answer });
  });
  await page.reload();
  await openTemplate(page, "Text to image");
  const sampler = node(page, "5");
  const words = "<img src=x> how closely\na number from 0 to 100; default 8";
  await expect(sampler.locator(".label", { hasText: "cfg" })).toHaveAttribute(
    "title",
    new RegExp(`^cfg: ${words.replaceAll("\n", "\\n")}`),
  );
  await expect(sampler.getByLabel("cfg")).toHaveAccessibleDescription(/how closely/);
  await expect(sampler.getByTitle("what denoises\nMODEL")).toHaveText("model");
  await expect(sampler.getByTitle("the picture to be\nLATENT")).toBeVisible();
  await sampler.getByLabel("cfg").press("F1");
  const help = page.getByRole("region", { name: "help" });
  await expect(help.getByRole("heading")).toHaveText("KSampler");
  await expect(help.locator("dd.asked")).toHaveText(words);
  await expect(help.locator("img")).toHaveCount(0);
  await page.keyboard.press("Escape");
  await node(page, "2").locator(".card-title .name").click();
  await page.keyboard.press("F1");
  await expect(help.getByRole("heading")).toHaveText(/^CLIP Text Encode/);
  await expect(help.locator(".asked")).toHaveCount(0);
  await help.getByRole("button", { name: "close the help" }).click();
  await expect(help).toHaveCount(0);
});

test("P0.21 a dynamic choice shows the inputs of its value, in one undo step", async ({ page }) => {
  await openTemplate(page, "Text to image");
  await page.keyboard.press("Shift+A");
  await page.keyboard.type("ResizeImageMaskNode");
  await page.keyboard.press("Enter");
  const card = page.locator(".card.selected");
  await expect(card.locator("[data-widget]")).toHaveCount(5);
  const names = () =>
    card
      .locator("[data-widget]")
      .evaluateAll((rows) => rows.map((row) => row.getAttribute("data-widget")));
  const sides = [
    "resize_type",
    ...["width", "height", "crop"].map((name) => `resize_type.${name}`),
  ];
  expect(await names()).toEqual([...sides, "scale_method"]);
  await card.getByLabel("width", { exact: true }).fill("64");
  await card.getByLabel("width", { exact: true }).press("Enter");
  await card.getByLabel("resize_type", { exact: true }).selectOption("scale width");
  await expect.poll(names).toEqual(["resize_type", "resize_type.width", "scale_method"]);
  await expect(card.getByLabel("width", { exact: true })).toHaveValue("64");
  const [resize] = (await downloaded(page)).nodes.slice(-1);
  expect(resize.widgets_values).toEqual(["scale width", 64, "area"]);
  await page.keyboard.press("Control+z");
  await expect.poll(names).toEqual([...sides, "scale_method"]);
});

test("P1.19 a prompt shows its token count for the text encoder that reads it", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  const tokens = node(page, "2").locator(".tokens");
  await expect(tokens).toHaveText(/^\d+ of 75 tokens$/);
  const text = node(page, "2").getByRole("textbox");
  await text.fill("a (red:1.3) star // and no comment");
  await expect(tokens).toHaveText("3 of 75 tokens");
  const asking = page.waitForRequest("**/katz/tokens");
  await text.fill("star ".repeat(81));
  await text.pressSequentially("!");
  await asking;
  await expect(tokens).toHaveText("82 tokens, 2 chunks of 75");
  await expect(text).toBeFocused(); // typing continues
  await page.getByRole("main").press("Control+z");
  await page.locator(".react-flow__edge[data-id]").first().waitFor({ state: "attached" });
  await node(page, "2").locator(".card-title").click();
  await act(page, "Cut all links of the selected nodes");
  await expect(tokens).toHaveCount(0); // the text encoder is unknown
});
