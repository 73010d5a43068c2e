/** Editing the graph, against a real `katz serve`. */
import { expect } from "@playwright/test";
import { NESTED } from "./graphs";
import { downloaded, drag, handle, node, openFile, openTemplate, test } from "./steps";

test("P0.04 P0.05 P0.06 links are drawn, replaced, or refused with a reason; a widget accepts a link", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  await drag(page, handle("4", "out:0"), handle("3", "in:0"));
  await expect(page.getByRole("alert")).toContainText("LATENT does not fit CLIP");
  await drag(page, handle("2", "out:0"), handle("5", "in:2"));
  let doc = await downloaded(page);
  const into = (id: number, slot: number) =>
    doc.links.filter((link: number[]) => link[3] === id && link[4] === slot);
  expect(into(5, 2)).toMatchObject([[expect.anything(), 2, 0, 5, 2, "CONDITIONING"]]);
  expect(doc.nodes.find(({ id }: { id: number }) => id === 3).outputs[0].links).toEqual([]);
  // a link dropped on the canvas searches for compatible nodes; a link replaces a widget's value
  await node(page, "5").hover();
  await drag(page, handle("5", "new:steps"), { x: 700, y: 780 });
  const search = page.getByRole("combobox", { name: "Add a node for INT" });
  await search.fill("int");
  await page
    .getByRole("option", { name: /^Int\b/ })
    .first()
    .click();
  await expect(node(page, "5").locator(".widget.linked")).toContainText("steps");
  doc = await downloaded(page);
  const sampler = doc.nodes.find(({ id }: { id: number }) => id === 5);
  expect(sampler.inputs.at(-1)).toMatchObject({ name: "steps", widget: { name: "steps" } });
  await page.keyboard.press("Control+z");
  await expect(node(page, "5").getByLabel("steps")).toHaveValue("20");
});

test("P0.07 P0.08 P0.10 nodes are moved by keys, copied between tabs, muted, collapsed, coloured, renamed", async ({
  page,
  context,
}) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await openTemplate(page, "Text to image");
  const before = await downloaded(page);
  await node(page, "2").locator(".card-title").click();
  await page.keyboard.press("Control+ArrowRight");
  await page.keyboard.press("Control+ArrowRight");
  await page.keyboard.press("Control+m");
  await expect(node(page, "2")).toHaveClass(/muted/);
  await page.keyboard.press("Alt+c");
  await expect(node(page, "2")).toHaveClass(/collapsed/);
  await page.keyboard.press("F2");
  await page.getByLabel("title").fill("what to paint");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Shift+C");
  await page.getByRole("combobox", { name: "Colour" }).fill("teal");
  await page.keyboard.press("Enter");
  const after = await downloaded(page);
  const [old, now] = [before, after].map(({ nodes }) =>
    nodes.find(({ id }: { id: number }) => id === 2),
  );
  expect(now).toEqual({
    ...old,
    pos: [old.pos[0] + 16, old.pos[1]],
    mode: 2,
    flags: { collapsed: true },
    title: "what to paint",
    color: "#2f6770",
  });
  for (const step of ["colour", "rename", "collapse", "mute", "move"]) {
    await expect(page.getByRole("button", { name: "Undo" })).toHaveAttribute(
      "title",
      new RegExp(`: ${step} `),
    );
    await page.keyboard.press("Control+z");
  }
  await page.keyboard.press("Control+a");
  await page.keyboard.press("Control+c");
  await page.keyboard.press("Alt+n");
  await expect(page.locator(".card")).toHaveCount(0);
  await page.keyboard.press("Control+v");
  await expect(page.locator(".card")).toHaveCount(before.nodes.length);
  await expect(page.locator(".react-flow__edge")).toHaveCount(before.links.length);
});

test("P0.11 a group moves its nodes, is renamed, and leaves its nodes in place when deleted", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  const before = await downloaded(page);
  await node(page, "2").locator(".card-title").click();
  await node(page, "3")
    .locator(".card-title")
    .click({ modifiers: ["Shift"] });
  await page.keyboard.press("Control+g");
  await drag(page, ".group-title", { x: 700, y: 700 });
  const moved = await downloaded(page);
  const place = (doc: typeof moved, id: number) =>
    doc.nodes.find((one: { id: number }) => one.id === id).pos;
  const by = (id: number) =>
    place(moved, id).map((at: number, n: number) => at - place(before, id)[n]);
  expect(by(2)).toEqual(by(3));
  expect(by(2)).not.toEqual([0, 0]);
  expect(by(5)).toEqual([0, 0]);
  await page.locator(".group-title").dblclick();
  await page.getByLabel("title").fill("prompts");
  await page.keyboard.press("Enter");
  await expect(page.locator(".group-title")).toHaveText("prompts");
  await page.locator(".group-title").click();
  await page.keyboard.press("Delete");
  await expect(page.locator(".group-title")).toHaveCount(0);
  expect((await downloaded(page)).nodes).toEqual(moved.nodes);
});

test("P0.12 P0.13 a subgraph shows its widgets, is opened, edited and searched, and undone from outside", async ({
  page,
}) => {
  await openFile(page, "nested.json", JSON.stringify(NESTED));
  await expect(node(page, "2").getByLabel("text")).toHaveValue("a red star");
  await node(page, "2").getByRole("button", { name: "Open the subgraph" }).click();
  await expect(page.getByLabel("subgraph").getByText("Words")).toBeVisible();
  await expect(page.locator(".react-flow__edge")).toHaveCount(3);
  await node(page, "9").locator(".card-title").click();
  await page.keyboard.press("Delete");
  await expect(page.locator(".react-flow__edge")).toHaveCount(0);
  const [inside] = (await downloaded(page)).definitions.subgraphs;
  expect(inside.inputs.map(({ linkIds }: { linkIds: number[] }) => linkIds)).toEqual([[], []]);
  await page.keyboard.press("Escape");
  await expect(node(page, "1")).toBeVisible();
  await page.keyboard.press("Control+z");
  await expect(node(page, "9")).toBeVisible(); // undo shows the graph that it changed
  expect(await downloaded(page)).toEqual(NESTED);
  await page.getByLabel("subgraph").getByRole("button", { name: "nested" }).click();
  await page.keyboard.press("Control+f");
  await page.getByRole("combobox", { name: "Find in the graph" }).fill("text encode");
  await page.keyboard.press("Enter");
  await expect(node(page, "9")).toHaveClass(/selected/);
});

test("P0.15 unknown nodes are marked and saved unchanged", async ({ page }) => {
  const strange = {
    ...NESTED,
    nodes: [
      {
        ...NESTED.nodes[0],
        type: "FromAnotherPack",
        widgets_values: [{ deep: [1, 2] }, "x"],
        properties: { cnr_id: "another-pack" },
      },
    ],
    links: [],
    definitions: {},
  };
  await openFile(page, "strange.json", JSON.stringify(strange));
  await expect(node(page, "1")).toContainText("FromAnotherPack is not installed here");
  await page.keyboard.press("l");
  expect(await downloaded(page)).toEqual(strange);
});
