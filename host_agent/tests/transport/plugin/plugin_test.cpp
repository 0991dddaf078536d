#include "transport/plugin.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace wiresum::transport {
namespace {

/// The folder of the shared objects that these tests load.
const std::string kFolder = WIRESUM_TEST_PLUGINS;

DeviceConfig some_device() {
  DeviceConfig config;
  config.device = "eth7";
  return config;
}

std::string error_of(PluginKind kind, const std::string& path) {
  try {
    static_cast<void>(make_device_transports(kind, some_device(), path));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Plugin, PassesTheConfigurationToTheFactoryAndItsErrorsToTheCaller) {
  try {
    static_cast<void>(make_device_transports(PluginKind::kXdp, some_device(), kFolder + "/good_plugin.so"));
    FAIL() << "the plugin's error is missing";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "asked for eth7");
  }
}

TEST(Plugin, AMissingPluginIsAnErrorThatSaysWhatToInstall) {
  const std::string xdp = error_of(PluginKind::kXdp, kFolder + "/none.so");
  EXPECT_TRUE(says(xdp, "AF_XDP") && says(xdp, "libxdp-dev libbpf-dev clang") && says(xdp, kFolder)) << xdp;
  const std::string dpdk = error_of(PluginKind::kDpdk, kFolder + "/none.so");
  EXPECT_TRUE(says(dpdk, "DPDK") && says(dpdk, "libdpdk-dev")) << dpdk;
}

TEST(Plugin, IsSearchedBesideTheLoadingCode) {
  // The folder of this test has a file of that name that is no plugin.
  const std::filesystem::path beside =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "wiresum_dpdk.so";
  std::ofstream(beside) << "not a shared object";
  const std::string error = error_of(PluginKind::kDpdk, "");
  std::filesystem::remove(beside);
  EXPECT_TRUE(says(error, "cannot load the DPDK transport") && says(error, beside.string())) << error;
}

TEST(Plugin, APluginWithoutItsLibrariesSaysWhatToInstall) {
  const std::string error = error_of(PluginKind::kXdp, kFolder + "/orphan_plugin.so");
  EXPECT_TRUE(says(error, "libplugin_library.so") && says(error, "apt-get install libxdp1 libbpf1")) << error;
}

TEST(Plugin, APluginOfAnotherVersionIsRefusedBeforeItsFactoryIsCalled) {
  const std::string error = error_of(PluginKind::kXdp, kFolder + "/stale_plugin.so");
  EXPECT_TRUE(says(error, "another version") && says(error, "0123456789abcdef") && says(error, kTransportAbi)) << error;
}

TEST(Plugin, AnyOtherSharedObjectIsRefused) {
  const std::string error = error_of(PluginKind::kXdp, kFolder + "/foreign_plugin.so");
  EXPECT_TRUE(says(error, "is no transport of wiresum")) << error;
}

}  // namespace
}  // namespace wiresum::transport
