/** Rewiring the graph with few gestures, against a real `katz serve`. */
import { expect, type Page } from "@playwright/test";
import { ADDED } from "./graphs";
import { downloaded, middleOf, node, openFile, test } from "./steps";

async function wires(page: Page): Promise<number[][]> {
  const { links } = await downloaded(page);
  return links.map((link: number[]) => link.slice(1, 5)).sort();
}

test("P1.01 a node dropped on a link is inserted into it, and dissolved again", async ({
  page,
}) => {
  await openFile(page, "added.json", JSON.stringify(ADDED));
  const title = node(page, "4").locator(".card-title .name");
  await expect(title).toBeVisible();
  const { x, y } = await middleOf(page, 2);
  const box = await title.boundingBox();
  if (box === null) throw new Error("not in view");
  await page.mouse.move(box.x + 10, box.y + box.height / 2);
  await page.mouse.down();
  await page.mouse.move(x - 30, y + 40, { steps: 6 });
  await page.mouse.move(x - 40, y, { steps: 6 });
  await expect(page.locator('[data-id="2"] .into')).toHaveCount(1);
  await page.mouse.up();
  await expect(page.locator(".into")).toHaveCount(0);
  expect(await wires(page)).toEqual([
    [1, 0, 3, 0],
    [2, 0, 4, 0],
    [4, 0, 3, 1],
  ]);
  await page.keyboard.press("Control+z");
  expect(await downloaded(page)).toEqual(ADDED); // moved and linked in one step
  await page.keyboard.press("Control+Shift+Z");
  await page.keyboard.press("Control+Delete");
  await expect(node(page, "4")).toHaveCount(0);
  expect(await wires(page)).toEqual([
    [1, 0, 3, 0],
    [2, 0, 3, 1],
  ]);
});

test("P1.02 a stroke cuts the links that it crosses; a double-click adds a reroute to a link", async ({
  page,
}) => {
  await openFile(page, "added.json", JSON.stringify(ADDED));
  await expect(node(page, "3")).toBeVisible();
  const [one, other] = [await middleOf(page, 1), await middleOf(page, 2)];
  const stroke = async (button: "left" | "right", from: number, to: number) => {
    await page.mouse.move(one.x, from);
    await page.mouse.down({ button });
    await page.mouse.move(one.x + 5, to, { steps: 8 });
    await page.mouse.up({ button });
  };
  await page.mouse.dblclick(other.x, other.y);
  await page.mouse.dblclick(other.x - 60, (await middleOf(page, 2)).y); // before the first one
  await expect(page.locator(".react-flow__node-point")).toHaveCount(2);
  const { extra } = await downloaded(page);
  const [last, first] = extra.reroutes;
  expect(last).toMatchObject({ parentId: first.id, linkIds: [2] });
  expect(first.pos[0]).toBeLessThan(last.pos[0]);
  await page.keyboard.press("Control+z");
  await page.keyboard.press("Control+z");
  expect(await downloaded(page)).toEqual(ADDED);

  await page.keyboard.down("Control");
  await stroke("right", one.y - 40, one.y + 40);
  await page.keyboard.up("Control");
  await expect(page.locator(".menu")).toHaveCount(0);
  expect(await wires(page)).toEqual([[2, 0, 3, 1]]);
  await page.keyboard.press("Control+z");
  await page.keyboard.down("y");
  await stroke("left", one.y - 40, other.y + 40);
  await page.keyboard.up("y");
  await expect(page.locator(".react-flow__edge")).toHaveCount(0);
  await expect(page.getByRole("button", { name: "Undo" })).toHaveAttribute(
    "title",
    /: cut 2 links /,
  );
  await page.keyboard.press("Control+z");
  expect(await wires(page)).toHaveLength(2);
});

test("P1.07 a node is replaced and keeps compatible links, inputs are swapped, selected nodes linked", async ({
  page,
}) => {
  await openFile(page, "added.json", JSON.stringify(ADDED));
  const select = (id: string, more = false) =>
    node(page, id)
      .locator(".card-title")
      .click(more ? { modifiers: ["Shift"] } : {});
  await select("3");
  await page.keyboard.press("Alt+s");
  expect(await wires(page)).toEqual([
    [1, 0, 3, 1],
    [2, 0, 3, 0],
  ]);
  await select("4");
  await select("3", true);
  await page.keyboard.press("Shift+F");
  await expect(page.locator(".react-flow__edge")).toHaveCount(3);
  expect(await wires(page)).toContainEqual([3, 0, 4, 0]); // node 3 has no free input
  await page.keyboard.press("Control+z");
  await select("3");
  await page.keyboard.press("Shift+S");
  const types = page.getByRole("combobox", { name: "Change the node type to" });
  await types.fill("LatentBlend");
  const first = page.getByRole("option").first();
  await expect(first).toContainText("keeps 2 of 2 links");
  await page.keyboard.press("Enter");
  await expect(node(page, "3").getByLabel("blend_factor")).toHaveValue("0.5");
  const doc = await downloaded(page);
  const now = doc.nodes.find(({ id }: { id: number }) => id === 3);
  expect(now).toMatchObject({ type: "LatentBlend", pos: [800, 160] });
  expect(doc.links).toHaveLength(2);
  for (const step of ["change to", "swap inputs"]) {
    await expect(page.getByRole("button", { name: "Undo" })).toHaveAttribute(
      "title",
      new RegExp(`: ${step}`),
    );
    await page.keyboard.press("Control+z");
  }
  expect(await downloaded(page)).toEqual(ADDED);
});
