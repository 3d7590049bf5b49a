import eslint from '@eslint/js';
import { builtinRules } from 'eslint/use-at-your-own-risk';
import tseslint from 'typescript-eslint';

/** `// eslint-disable-next-line rule -- reason`: the reason is what this rule asks for. */
const disableNeedsReason = {
  meta: { type: 'suggestion', schema: [], messages: { reason: 'Say why after " -- ".' } },
  create: (context) => ({
    Program() {
      for (const comment of context.sourceCode.getAllComments()) {
        if (/^\s*eslint-disable/.test(comment.value) && !/\s--\s+\S/.test(comment.value)) {
          context.report({ loc: comment.loc, messageId: 'reason' });
        }
      }
    },
  }),
};

/** One rule has one severity, so the softer size limit is the same rule under a second name. */
const house = {
  rules: { 'disable-needs-reason': disableNeedsReason, 'advised-max-lines': builtinRules.get('max-lines') },
};

const codeLines = (max) => ({ max, skipBlankLines: true, skipComments: true });

export default tseslint.config(
  { ignores: ['dist/', 'build/', 'coverage/', 'docs/api/', 'tests/fixtures/', 'native-nccl/build/', '.gpu/'] },
  { linterOptions: { reportUnusedDisableDirectives: 'error' } },
  eslint.configs.recommended,
  tseslint.configs.recommendedTypeChecked,
  {
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    plugins: { house },
    rules: {
      eqeqeq: 'error',
      'max-lines': ['error', codeLines(400)],
      'house/advised-max-lines': ['warn', codeLines(300)],
      'house/disable-needs-reason': 'error',
      'no-restricted-syntax': [
        'error',
        { selector: 'ExportAllDeclaration', message: 'Name what is exported; `export *` hides it.' },
        { selector: 'TSEnumDeclaration', message: 'Use a union of literals, or a const object of them.' },
      ],
      '@typescript-eslint/ban-ts-comment': [
        'error',
        { 'ts-expect-error': 'allow-with-description', minimumDescriptionLength: 5 },
      ],
      '@typescript-eslint/consistent-type-exports': 'error',
      '@typescript-eslint/consistent-type-imports': ['error', { fixStyle: 'inline-type-imports' }],
      '@typescript-eslint/no-explicit-any': 'error',
      '@typescript-eslint/no-floating-promises': ['error', { checkThenables: true }],
      '@typescript-eslint/no-misused-promises': 'error',
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_', varsIgnorePattern: '^_' }],
      // An async function without `await` turns what it throws into a rejection, which is what we promise.
      '@typescript-eslint/require-await': 'off',
      '@typescript-eslint/return-await': ['error', 'in-try-catch'],
      '@typescript-eslint/switch-exhaustiveness-check': ['error', { considerDefaultExhaustiveForUnions: true }],
    },
  },
  {
    files: ['src/**/*.ts'],
    rules: {
      'no-console': 'error',
      'no-restricted-properties': [
        'error',
        { object: 'process', property: 'exit', message: 'A library never ends the process; reject or set exitCode.' },
      ],
      '@typescript-eslint/explicit-module-boundary-types': 'error',
    },
  },
  {
    // Parsed JSON and Jest's asymmetric matchers are `any`; a wrong use fails the test.
    files: ['tests/**/*.ts', 'bench/**/*.ts'],
    rules: {
      '@typescript-eslint/no-unsafe-argument': 'off',
      '@typescript-eslint/no-unsafe-assignment': 'off',
      '@typescript-eslint/no-unsafe-call': 'off',
      '@typescript-eslint/no-unsafe-member-access': 'off',
      '@typescript-eslint/no-unsafe-return': 'off',
      '@typescript-eslint/unbound-method': 'off',
    },
  },
  {
    files: ['**/*.js', '**/*.cjs', '**/*.mjs'],
    extends: [tseslint.configs.disableTypeChecked],
    languageOptions: { globals: { module: 'writable', require: 'readonly', process: 'readonly', console: 'readonly' } },
  },
);
