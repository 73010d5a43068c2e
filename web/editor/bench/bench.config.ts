import { defineConfig } from "@playwright/test";
import usual from "../playwright.config";

export default defineConfig({ ...usual, testDir: "." });
