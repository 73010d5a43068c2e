import { expect, test } from "vitest";
import { imageDragData, IMAGES_TYPE } from "./imageDrag";

test("P1.21 a dragged image is a file for the desktop, and an address for nodes", () => {
  const address = "view?filename=set%2Fa.png&subfolder=&type=output";
  const other = "view?filename=b.webp&subfolder=&type=input";
  const base = "http://127.0.0.1:8188/";
  expect(imageDragData([address, other], base)).toEqual({
    [IMAGES_TYPE]: `${address}\n${other}`,
    "text/uri-list": `${base}${address}\r\n${base}${other}`,
    DownloadURL: `image/png:a.png:${base}${address}`,
  });
  expect(imageDragData([], base)).toEqual({});
});
