{
  "targets": [
    {
      "target_name": "lockstep_nccl",
      "sources": ["<!@(node -p \"require('fs').readdirSync('src').filter((name) => name.endsWith('.cc')).map((name) => 'src/' + name).join(' ')\")"],
      "include_dirs": ["<!(node -p \"require('node-addon-api').include_dir\")"],
      "defines": ["NAPI_VERSION=8", "NODE_ADDON_API_CPP_EXCEPTIONS"],
      "cflags!": ["-fno-exceptions"],
      "cflags_cc!": ["-fno-exceptions", "-fno-rtti", "-std=gnu++17", "-std=gnu++20"],
      "cflags_cc": ["-std=c++17", "-fexceptions", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra"],
      "libraries": ["-ldl", "-lpthread"]
    }
  ]
}
