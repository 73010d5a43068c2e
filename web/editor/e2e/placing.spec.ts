/** Positions of nodes and display of links, against a real `katz serve`. */
import { expect, type Page } from "@playwright/test";
import { ADDED, NESTED } from "./graphs";
import { act, downloaded, middleOf, node, openFile, test } from "./steps";

async function places(page: Page): Promise<Record<string, number[]>> {
  const { nodes } = await downloaded(page);
  return Object.fromEntries(nodes.map(({ id, pos }: { id: number; pos: number[] }) => [id, pos]));
}

async function select(page: Page, ...ids: string[]): Promise<void> {
  await page.keyboard.press("Escape");
  for (const [at, id] of ids.entries())
    await node(page, id)
      .locator(".card-title")
      .click(at > 0 ? { modifiers: ["Shift"] } : {});
}

/** Returns the vertical positions of both ends of a link. */
function heights(page: Page, link: number): Promise<number[]> {
  return page
    .locator(`.react-flow__edge[data-id="${link}"] .react-flow__edge-path`)
    .evaluate((path: SVGPathElement) =>
      [0, path.getTotalLength()].map((at) => Math.round(path.getPointAtLength(at).y)),
    );
}

test("P1.04 nodes are aligned, distributed, straightened, and snapped while dragged", async ({
  page,
}) => {
  await openFile(page, "added.json", JSON.stringify(ADDED));
  await expect(node(page, "4")).toBeVisible();
  await select(page, "1", "2", "4");
  await page.keyboard.press("Control+Shift+ArrowLeft");
  let now = await places(page);
  expect([now[1]?.[0], now[2]?.[0], now[4]?.[0]]).toEqual([0, 0, 0]);
  await page.keyboard.press("Shift+V");
  now = await places(page);
  expect([now[1]?.[1], now[4]?.[1]]).toEqual([0, 600]);
  const boxes = await Promise.all(["1", "2", "4"].map((id) => node(page, id).boundingBox()));
  const [one, two, four] = boxes.map((box) => box ?? { y: 0, height: 0 });
  const gap = (upper = one, lower = one) =>
    (lower?.y ?? 0) - (upper?.y ?? 0) - (upper?.height ?? 0);
  expect(Math.abs(gap(one, two) - gap(two, four))).toBeLessThan(2);

  expect((await heights(page, 1))[0]).not.toBe((await heights(page, 1))[1]);
  await select(page, "1", "3");
  await page.keyboard.press("Shift+L");
  const [from, to] = await heights(page, 1);
  expect(from).toBe(to);
  for (const step of ["straighten", "distribute", "align left"]) {
    await expect(page.getByRole("button", { name: "Undo" })).toHaveAttribute(
      "title",
      new RegExp(`: ${step} `),
    );
    await page.keyboard.press("Control+z");
  }
  expect(await downloaded(page)).toEqual(ADDED);

  await page.keyboard.press("Escape");
  const drag = async (away: number, key: "Control" | null) => {
    await expect(page.getByRole("button", { name: "Undo" })).toBeDisabled(); // all is undone
    const title = node(page, "4").locator(".card-title .name");
    const [grip, goal] = [await title.boundingBox(), await node(page, "3").boundingBox()];
    const own = await node(page, "4").boundingBox();
    if (grip === null || goal === null || own === null) throw new Error("not in view");
    const [x, y] = [grip.x + 5, grip.y + 5];
    await page.mouse.move(x, y);
    await page.mouse.down();
    await page.mouse.move(x + 1, y + 1); // the drag starts here
    if (key !== null) await page.keyboard.down(key);
    const right = goal.x - own.x + away;
    await page.mouse.move(x + right / 2, y + 10, { steps: 4 });
    await page.mouse.move(x + right, y + 30, { steps: 4 });
    await page.mouse.move(x + right, y + 31);
  };
  await drag(4, "Control");
  await expect(page.locator(".guides line")).toHaveCount(0);
  await page.mouse.up();
  await page.keyboard.up("Control");
  expect((await places(page))[4]?.[0]).not.toBe(800);
  await page.keyboard.press("Control+z");
  await drag(4, null);
  await expect(page.locator(".guides line").first()).toBeAttached();
  await page.mouse.up();
  await expect(page.locator(".guides")).toHaveCount(0);
  expect((await places(page))[4]?.[0]).toBe(800);
  await page.keyboard.press("Control+z");
  expect(await downloaded(page)).toEqual(ADDED);
});

test("P1.05 links are hidden singly with a name, by type or all at once, and drawn for selected nodes", async ({
  page,
}) => {
  await openFile(page, "added.json", JSON.stringify(ADDED));
  const badges = page.locator(".link-badge");
  await expect(node(page, "4")).toBeVisible();
  const { x, y } = await middleOf(page, 1);
  await page.mouse.click(x, y, { button: "right" });
  await page.getByRole("menuitem", { name: "Name and hide the selected link" }).click();
  await page.getByLabel("title").fill("<b>first");
  await page.keyboard.press("Enter");
  await expect(badges).toHaveText(["<b>first", "<b>first"]);
  await page.locator(".react-flow__pane").click({ position: { x: 1000, y: 480 } });
  await expect(page.locator('[data-id="1"] .stub')).toHaveCount(1);
  await expect(page.locator('[data-id="2"] .stub')).toHaveCount(0);
  await badges.last().click(); // goes to the other end
  await expect(node(page, "1")).toHaveClass(/selected/);
  await expect(page.locator(".stub")).toHaveCount(0);
  const { extra } = await downloaded(page);
  expect(extra).toEqual({ katz: { hidden_links: { "1": "<b>first" } } });
  await page.keyboard.press("Control+z"); // hiding and naming are one step
  expect(await downloaded(page)).toEqual(ADDED);

  await page.keyboard.press("Escape");
  await act(page, "Hide links of a type");
  await expect(page.getByRole("option")).toContainText("2, drawn");
  await page.keyboard.press("Enter");
  await expect(page.locator(".stub")).toHaveCount(2);
  await expect(badges).toHaveCount(4);
  await page.keyboard.press("Control+z");
  await page.keyboard.press("Alt+Shift+L");
  await expect(badges).toHaveCount(4);
  await select(page, "2");
  await expect(page.locator(".stub")).toHaveCount(1);
  await page.keyboard.press("Alt+Shift+L");
  await expect(badges).toHaveCount(0);
  await page.keyboard.press("Alt+l"); // the links of the selected node
  await expect(badges).toHaveCount(2);
  await page.keyboard.press("Alt+l");
  expect(await downloaded(page)).toEqual(ADDED);
});

test("P1.20 bookmarks restore the viewport, also in subgraphs, and survive saving", async ({
  page,
}) => {
  await openFile(page, "nested.json", JSON.stringify(NESTED));
  const view = () =>
    page.locator(".react-flow__viewport").evaluate((one) => {
      const { a, e, f } = new DOMMatrix(getComputedStyle(one).transform);
      return [a.toFixed(2), ...[e, f].map((value) => Math.round(value / 4))].join(); // in 4 pixels
    });
  const trail = page.getByLabel("subgraph");
  const bookmark = async (number: string) => {
    await page.keyboard.press("b");
    await page.getByRole("combobox", { name: "Bookmark this place" }).fill(number);
    await page.keyboard.press("Enter");
  };
  await node(page, "2").getByRole("button", { name: "Open the subgraph" }).click();
  await expect(trail).toBeVisible();
  await page.keyboard.press("0");
  let there = "";
  const rests = async () => {
    const before = there;
    there = await view();
    return there === before;
  };
  await expect.poll(rests, { intervals: [300] }).toBe(true);
  await bookmark("3");
  await page.keyboard.press("Alt+=");
  await expect.poll(view).not.toBe(there);
  await page.keyboard.press("Escape");
  await expect(trail).toHaveCount(0);
  await bookmark("1");
  await page.keyboard.press("3");
  await expect(trail).toBeVisible();
  await expect.poll(view).toBe(there);
  await page.keyboard.press("1");
  await expect(trail).toHaveCount(0);
  await page.keyboard.press("7");
  await expect(page.getByRole("alert")).toContainText("bookmark 7 is not set");

  const saved = await downloaded(page);
  expect(Object.keys(saved.extra.katz.bookmarks)).toEqual(["1", "3"]);
  expect({ ...saved, extra: {} }).toEqual(NESTED);
  await openFile(page, "again.json", JSON.stringify(saved));
  await expect(page.locator(".tab.active")).toContainText("again");
  await page.keyboard.press("3");
  await expect(trail).toBeVisible();
  await bookmark("remove bookmark 3");
  await page.keyboard.press("Escape");
  await page.keyboard.press("3");
  await expect(page.getByRole("alert")).toContainText("bookmark 3 is not set");
});

test("P0.09 an aborted drag restores the node's position, and other nodes can be selected", async ({
  page,
}) => {
  await openFile(page, "added.json", JSON.stringify(ADDED));
  await expect(node(page, "4")).toBeVisible();
  const title = node(page, "1").locator(".card-title .name");
  const before = await title.boundingBox();
  const { x, y } = before ?? { x: 0, y: 0 };
  await page.mouse.move(x + 4, y + 4);
  await page.mouse.down();
  await page.mouse.move(x + 60, y + 40, { steps: 6 });
  await page.keyboard.press("Delete");
  await expect(node(page, "1")).toHaveCount(0);
  await page.mouse.move(x + 90, y + 60, { steps: 3 });
  await page.mouse.up();
  await node(page, "2").locator(".card-title .name").click();
  await expect(node(page, "2")).toHaveClass(/selected/);
  await page.keyboard.press("Control+z");
  await expect(node(page, "1")).toBeVisible();
  expect(await downloaded(page)).toEqual(ADDED);
  expect(await title.boundingBox()).toEqual(before);
});
