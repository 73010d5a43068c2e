/** Tools for values of fields, against a real `katz serve`. */
import { expect } from "@playwright/test";
import { node, openTemplate, test } from "./steps";

test("P1.17 numbers are computed; a value is copied, and dragged to another field in one undo step", async ({
  page,
  context,
}) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await openTemplate(page, "Text to image");
  const [steps, cfg] = [node(page, "5").getByLabel("steps"), node(page, "5").getByLabel("cfg")];
  const width = node(page, "4").getByLabel("width");
  await width.fill("64*1,5");
  await width.press("Enter");
  await expect(width).toHaveValue("96");
  await width.fill("(64+");
  await width.press("Enter");
  await expect(width).toHaveValue("96");
  await cfg.fill("2^3/(3+1)");
  await cfg.press("Enter");
  await expect(cfg).toHaveValue("2");
  const pasted = () => page.evaluate(() => navigator.clipboard.readText());
  await cfg.press("Control+Shift+C");
  await expect.poll(pasted).toBe("2");
  await node(page, "4").locator(".label", { hasText: "width" }).click({ button: "right" });
  await page.getByRole("menuitem", { name: "Copy the value of the field" }).click();
  await expect.poll(pasted).toBe("96");
  const before = await steps.inputValue();
  const carry = async (from: typeof cfg, to: typeof cfg) => {
    await page.keyboard.down("Alt");
    await from.hover();
    await page.mouse.down();
    await to.hover();
  };
  const drop = async () => {
    await page.mouse.up();
    await page.keyboard.up("Alt");
  };
  await carry(cfg, steps);
  await expect(node(page, "5").locator(".receives")).toHaveAttribute("data-widget", "steps");
  await drop();
  await expect(steps).toHaveValue("2");
  await page.getByRole("main").press("Control+z");
  await expect(steps).toHaveValue(before);
  await expect(cfg).toHaveValue("2");
  await carry(
    cfg,
    node(page, "5").getByLabel("sampler name").or(node(page, "5").getByLabel("sampler_name")),
  );
  await expect(page.locator(".receives")).toHaveCount(0);
  await drop();
  await expect(page.getByRole("button", { name: "Undo" })).toHaveAttribute("title", /set cfg/);
});

test("P1.19 names of embeddings and LoRAs are completed in a prompt; comments are not sent", async ({
  page,
}) => {
  await page.route("**/embeddings", (route) =>
    route.fulfill({ json: ["glass", "my_glass", "<img src=x>"] }),
  );
  await page.route("**/models/loras", (route) =>
    route.fulfill({ json: ["style/red.safetensors"] }),
  );
  await openTemplate(page, "Text to image");
  const text = node(page, "2").getByRole("textbox");
  const names = page.getByRole("listbox", { name: "names" });
  await text.fill("");
  await text.pressSequentially("a star, embedding:gl");
  await expect(names.getByRole("option")).toHaveText(["glass", "my_glass"]);
  await text.press("ArrowDown");
  await text.press("Enter");
  await expect(text).toHaveValue("a star, embedding:my_glass");
  await expect(names).toHaveCount(0);
  await text.pressSequentially(" <lora:");
  await names.getByRole("option", { name: "style/red" }).click();
  await text.pressSequentially("0.5"); // replaces the selected strength
  await expect(text).toHaveValue("a star, embedding:my_glass <lora:style/red:0.5>");
  await text.press("End");
  await text.pressSequentially("\nembedding:<");
  await expect(names.getByRole("option")).toHaveText(["<img src=x>"]);
  await text.press("Escape");
  await expect(names).toHaveCount(0);
  await expect(text).toBeFocused();
  await text.fill("a red star\nno tree\n// no grass");
  await text.press("ArrowUp");
  await text.press("Control+/");
  await expect(text).toHaveValue("a red star\n// no tree\n// no grass");
  const sending = page.waitForRequest("**/prompt");
  await page.keyboard.press("Control+Enter");
  const sent = (await sending).postDataJSON().prompt.nodes;
  const value = sent.find(({ id }: { id: number }) => id === 2).widgets_values[0];
  expect(value).toBe("a red star\n\n");
  await page.getByRole("main").press("Control+z");
  await expect(page.getByRole("button", { name: "Redo" })).toHaveAttribute("title", /set text/);
});
